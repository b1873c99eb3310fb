"""The table of measured runs: ours beside what a paper prints, and what is said below."""

import math

import pytest
from rich.console import Console

from benchmarks.reproduce import Paper, PaperRow, Row, beside, markdown_table, notes, papers, terminal_table

RUN = {
    "accuracy": 0.8,
    "in_batches": 0.9,
    "epsilon": 5.99,
    "delta": 1e-5,
    "answered": 10,
    "queried": 15,
    "queries": 20,
    "teachers": 200,
}


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
    ours = Row("`terrine-mnist`", "terrine-mnist", None, ("a", "b"), figures=[RUN, RUN])
    theirs = Row("Confident", "pate-mnist", published, ("c",), figures=[RUN])
    assert "published" not in markdown_table([ours])
    header, line, first, second = markdown_table([ours, theirs]).splitlines()
    assert header.endswith("| published | less here |")
    assert first.endswith("| 2 | – | – |")
    assert second.startswith("| Table 1: Confident | 80.00 | 90.00 | 5.9900 |")
    assert second.endswith("| 98.50 at its ε of 1.97 (Table 1) | no images |")
    assert {text.count("|") for text in (header, line, first, second)} == {11}


@pytest.mark.parametrize("name", papers())
def test_the_table_of_every_paper_fits_80_columns_with_its_figures_whole(name, capsys):
    rows = [
        Row(row.row, row.preset, row, (), figures=[] if row.gpu else [RUN, RUN | {"in_batches": 0.87}])
        for row in papers()[name].rows
    ]
    Console(width=80).print(terminal_table(rows))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for row in rows:
        made = bool(row.figures)
        assert any(f"{row.paper.accuracy:.2f}" in line and ("88.50 ± 2.12" in line) == made for line in lines)


def test_what_is_less_what_differs_and_what_is_missing_is_said_below():
    far, near = (
        PaperRow("Table 1", "digits", 50, "far", 0.5, reduced="digits"),
        PaperRow("Table 1", "digits", 91, "near"),
    )
    gpu = PaperRow("Table 2", "digits", 92, "large", gpu=True)
    rows = [
        Row("far", "digits", far, ("a", "b"), figures=[RUN, RUN | {"in_batches": 0.87}]),
        Row("near", "digits", near, ("c", "d"), "not made: There are no digits.", [RUN]),
        Row("large", "digits", gpu, (), "for a GPU"),
    ]
    paper = Paper("drawn", "Nobody 2020", "docs/drawn.md", (far, near, gpu), {"Figure 1": "python drawn.py"})
    said = "\n".join(notes(rows, [paper], None))
    assert "[a] digits" in said
    assert "* more than two standard deviations apart: 1 of 1 row whose deviation is known." in said
    assert "1 row has one run" in said
    assert "1 run of 1 row is not made" in said
    assert "Table 1: near: not made: There are no digits." in said
    assert "1 row needs a GPU" in said
    assert "Figure 1: python drawn.py" in said


def test_of_what_was_not_released_there_is_no_accuracy_nor_why_it_was_not_made():
    figures = [RUN | {"accuracy": math.nan, "in_batches": math.nan}]
    row = Row("own", "own", None, ("a", "b"), "not made: /secure/scans is missing", figures)
    assert "| own | not released | not released | 5.9900 |" in markdown_table([row])
    assert "/secure/scans" not in "\n".join(notes([row], [], None, reasons=False))


def test_asked_are_the_queries_that_were_looked_at_before_the_budget_ended():
    row = Row("labels", "labels", None, ("labels",), figures=[RUN, RUN | {"queried": 17}])
    assert "| 10 / 16 | 200 | 2 |" in markdown_table([row])


def test_where_records_add_up_sums_nobody_votes_and_nothing_is_answered():
    row = Row("sums", "sums", None, ("sums",), figures=[RUN | {"answered": 0, "queries": 0}])
    assert "| – | – | 1 |" in markdown_table([row])
