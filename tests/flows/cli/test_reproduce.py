"""`terrine reproduce`: ours beside what a paper prints."""

import pytest

from flows.cli.reproduce import beside, markdown_table
from tasks.config.presets import PaperRow

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
    shown = beside(PaperRow("Table 7", 97.5, paper_spread, 1.019), accuracy, spread)
    assert shown.startswith("97.50")
    assert "at its ε of 1.019 (Table 7)" in shown
    assert ("differs" in shown) == said


def test_papers_have_a_column_where_a_preset_is_of_one():
    ours, theirs = ("terrine-mnist", [RUN, RUN], None), ("pate-mnist", [RUN], PaperRow("Table 1", 98.5, 0, 1.97))
    assert "published" not in markdown_table([ours], [])
    header, line, first, second = markdown_table([ours, theirs], []).splitlines()
    assert header.endswith("| published |")
    assert first.endswith("| 2 | – |")
    assert second.endswith("| 98.50 at its ε of 1.97 (Table 1) |")
    assert {text.count("|") for text in (header, line, first, second)} == {9}
