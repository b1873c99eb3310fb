"""`terrine reproduce`: ours beside what a paper prints."""

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.cli.reproduce import Row, beside, markdown_table
from tasks.config.papers import Paper, PaperRow
from tests.conftest import REPOSITORY

RUN = {"accuracy": 0.9, "epsilon": 5.99, "delta": 1e-5, "answered": 10, "queries": 20, "teachers": 200}


@pytest.mark.parametrize(
    ("accuracy", "spread", "paper_spread", "said"),
    [
        (95.0, 1.0, 0.5, True),
        (95.0, 1.2, 0.5, False),
        (95.0, 0.0, 0.5, True),
        (97.0, 0.0, 0.5, False),
        (5, 0, 0, False),
    ],
)
def test_a_row_that_differs_by_more_than_two_deviations_is_marked(accuracy, spread, paper_spread, said):
    shown = beside(PaperRow("Table 7", "pate-mnist", 97.5, spread=paper_spread, epsilon=1.019), accuracy, spread)
    assert shown.startswith("97.50")
    assert "at its ε of 1.019 (Table 7)" in shown
    assert ("differs" in shown) == said


def test_papers_have_columns_where_a_row_is_of_one():
    published = PaperRow("Table 1", "pate-mnist", 98.5, "Confident", epsilon=1.97, reduced="no images")
    ours, theirs = (
        Row("`terrine-mnist`", None, ()),
        Row("Table 1", published, ()),
    )
    assert "published" not in markdown_table([ours], [[RUN]])
    header, line, first, second = markdown_table([ours, theirs], [[RUN, RUN], [RUN]]).splitlines()
    assert header.endswith("| published | less here |")
    assert first.endswith("| 2 | – | – |")
    assert second.endswith("| 98.50 at its ε of 1.97 (Table 1) | no images |")
    assert {text.count("|") for text in (header, line, first, second)} == {10}


def test_a_papers_rows_are_made_and_what_was_not_is_said(tmp_path, monkeypatch):
    """A row of a paper is a run with its own overrides; rows for a GPU are left out and named."""
    (tmp_path / "experiments").mkdir()
    for name, copied in (
        ("params.yaml", "params.yaml"),
        ("experiments/digits.yaml", "experiments/terrine-digits.yaml"),
    ):
        (tmp_path / name).write_bytes((REPOSITORY / copied).read_bytes())
    monkeypatch.setenv("TERRINE_ROOT", str(tmp_path))
    rows = (
        PaperRow("Table 1", "digits", 90.0, "wide", sets=("queries.count=60",)),
        PaperRow("Table 1", "digits", 91.0, "large", gpu=True),
        PaperRow("Table 2", "digits", 92.0, "other"),
    )
    paper = Paper("drawn", "Nobody 2020", "docs/drawn.md", rows, {"Figure 1": "python benchmarks/drawn.py"})
    monkeypatch.setattr("tasks.config.papers.papers", lambda: {"drawn": paper})
    made = []
    monkeypatch.setattr("flows.making.make", lambda root, run: made.append(run))
    monkeypatch.setattr("tasks.runtime.run.open_run", lambda root, run: run)
    monkeypatch.setattr("tasks.reports.summary.figures", lambda run: RUN)
    monkeypatch.setattr("tasks.runtime.versioning.changed_stages", lambda *of: ["all"])
    result = CliRunner().invoke(app, ["reproduce", "drawn", "--seeds", "2", "--table", "Table 1"])
    assert result.exit_code == 0, result.output
    assert len(set(made)) == 2
    assert "| Table 1: wide | 90.00 ± 0.00 |" in result.output
    assert "Left out, for they need a GPU (--gpu): Table 1, large (digits)." in result.output
    assert "Table 2" not in result.output
    refused = CliRunner().invoke(app, ["reproduce", "digits", "--table", "Table 1"])
    assert refused.exit_code != 0
