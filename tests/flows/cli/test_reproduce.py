"""`terrine reproduce`: the rows of a paper are made, each once."""

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.cli.reproduce import time_left
from tasks.config.papers import Paper, PaperRow
from tasks.reports.reproduced import Row
from tasks.runtime.run import Run
from tasks.runtime.store import Folders, write_json
from terrine.errors import InputError
from tests.conftest import REPOSITORY

RUN = {"accuracy": 0.9, "epsilon": 5.99, "delta": 1e-5, "answered": 10, "queries": 20, "teachers": 200}


def test_how_long_the_rest_takes_is_told_by_what_finished_runs_took(tmp_path):
    for run, seconds in (("a", 600.0), ("b", 60.0)):
        folders = Folders(tmp_path, run)
        for path in (folders.evaluation, folders.statement):
            write_json(path, {})
        write_json(folders.timings / "teach.json", {"stage": "teach", "seconds": seconds})
    rows = [
        Row("slow", "slow", None, ("a", "c")),
        Row("quick", "quick", None, ("b", "d")),
        Row("new", "new", None, ("e",)),
    ]
    assert "about 10 minutes" in time_left(tmp_path, rows, ["a", "c"])
    assert "about 11 minutes" in time_left(tmp_path, rows, ["c", "d"])
    assert "about 6 minutes" in time_left(tmp_path, rows, ["e"])  # by the mean of both
    assert "about 1 minute from" in time_left(tmp_path, rows, ["d"])
    assert time_left(tmp_path, rows[2:], ["e"]) == ""


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """A project and a paper of three rows, one of them for a GPU; runs are noted down instead of made."""
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
        PaperRow("Table 1", "digits", 93.0, "high", sets=("queries.count=80",)),
        PaperRow("Table 2", "digits", 92.0, "other"),
    )
    paper = Paper("drawn", "Nobody 2020", "docs/drawn.md", rows, {"Figure 1": "python benchmarks/drawn.py"})
    monkeypatch.setattr("tasks.config.papers.papers", lambda: {"drawn": paper})
    monkeypatch.setattr("tasks.runtime.run.open_run", lambda root, run: Run(root, run, None))
    monkeypatch.setattr("tasks.reports.summary.figures", lambda run: RUN)
    monkeypatch.setattr("flows.making.changed_stages", lambda *of: [])
    made = []

    def make(root, run):
        made.append(run)
        for path in (Folders(root, run).evaluation, Folders(root, run).statement):
            write_json(path, {})

    monkeypatch.setattr("flows.making.make", make)
    return made


def reproduced(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


def test_a_papers_rows_are_made_and_what_was_not_is_said(drawn, tmp_path):
    """A row of a paper is a run with its own overrides; rows for a GPU are left out and named."""
    nothing = reproduced("drawn", "--finished")
    assert nothing.exit_code == 0, nothing.output
    assert drawn == []
    assert [path.name for path in (tmp_path / "experiments").iterdir()] == ["digits.yaml"]
    assert "15 runs of 3 rows are not made" in nothing.output
    result = reproduced("drawn", "--seeds", "2", "--table", "Table 1", "--markdown")
    assert result.exit_code == 0, result.output
    assert len(set(drawn)) == 4
    assert "Run 1 of 4, " in result.output
    assert "| Table 1: wide | 90.00 | 5.9900 |" in result.output
    assert "1 row needs a GPU" in result.output
    assert "Table 2" not in result.output
    assert reproduced("drawn", "--seeds", "2", "--table", "Table 1").exit_code == 0
    assert len(drawn) == 4  # finished runs are not made again
    assert reproduced("digits", "--table", "Table 1").exit_code != 0


def test_a_row_that_cannot_be_made_leaves_the_others(drawn, monkeypatch):
    from flows import making

    make = making.make

    def refuse_the_first(root, run):
        if not drawn:
            drawn.append("refused")
            raise InputError("There are no digits here.")
        make(root, run)

    monkeypatch.setattr("flows.making.make", refuse_the_first)
    result = reproduced("drawn", "--seeds", "1", "--table", "Table 1")
    assert result.exit_code == 1
    assert len(drawn) == 2
    assert "Table 1: wide: not made: There are no digits here." in result.output
    assert "1 row has one run" in result.output
