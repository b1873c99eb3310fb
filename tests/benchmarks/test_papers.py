"""What papers print, and the runs that make it here."""

import pytest

from benchmarks.paper_cells import count, entries
from benchmarks.reproduce import inspected, papers, published
from benchmarks.tables import measurements
from tasks.config.presets import read_preset, with_assignments
from tasks.pipeline.graph import MAIN
from terrine.errors import SettingError
from tests.conftest import REPOSITORY

CLASSES = {"mnist": 10, "cifar10": 10, "bloodmnist": 8}


@pytest.mark.parametrize("name", papers())
def test_every_row_of_a_paper_is_a_run_that_can_be_made(name):
    paper = papers()[name]
    runs = [with_assignments(REPOSITORY, read_preset(REPOSITORY, row.preset), list(row.sets))[1] for row in paper.rows]
    for row, params in zip(paper.rows, runs, strict=True):
        assert 0 < row.accuracy < 100
        assert row.of_a_preset or row.reduced or row.sets
        assert params.data.name == "mnist" or row.preset != "ttac-mnist"
        if params.transcription is not None:  # what only the data tell a run, minutes after its start
            assert params.transcription.annotation.top_k <= CLASSES[params.data.name]
    keys = [(row.table, row.row, row.preset, row.sets) for row in paper.rows]
    assert len(set(keys)) == len(keys)


def test_the_twelve_rows_of_ttac_train_three_times():
    """What stages up to the teachers look at differs by the similarity alone, so a run takes them from another."""
    rows = [
        with_assignments(REPOSITORY, read_preset(REPOSITORY, row.preset), list(row.sets))[1]
        for row in papers()["ttac"].rows
    ]
    assert len(rows) == 12
    assert [len({inspected(params, stage, MAIN) for params in rows}) for stage in ("average", "teach")] == [3, 3]


@pytest.mark.parametrize("name", papers())
def test_what_a_paper_refers_to_is_there(name):
    paper = papers()[name]
    assert (REPOSITORY / paper.page).is_file()


@pytest.mark.parametrize("name", papers())
def test_reproduced_cells_have_rows_or_a_command(name):
    paper, known = papers()[name], measurements()
    named = {row.table for row in paper.rows} | set(paper.elsewhere)
    for table, entry in entries(name).items():
        cells = count(entry, known)
        assert cells.of == sum(cells[1:-1])
        if cells.full or cells.reduced:
            assert any(each.startswith(table) for each in named), table
    assert set(paper.not_possible) & set(entries(name)) <= {
        table for table, entry in entries(name).items() if not {"full", "reduced"} & entry.keys()
    }


def test_more_cells_than_were_measured_or_printed_are_refused():
    known = {"a/b": {"measured": [{"seeds": 5, "rows": [["x", "1", "2"]]}, {"seeds": 5, "rows": [["y", "3", "4"]]}]}}
    entry = {"of": 5, "reduced": {"a/b": 4}, "impossible": False}
    assert count(entry, known) == (5, 0, 4, 0, 0, 1, 4)
    assert count(entry | {"impossible": True}, known) == (5, 0, 4, 0, 1, 0, 4)
    known["a/b"]["measured"][1]["seeds"] = 1
    assert count(entry, known).seeds == 0
    assert count(entry | {"five": {"a/b": 2}}, known).seeds == 2
    for wrong in ({"reduced": {"a/b": 5}}, {"of": 3}, {"reduced": {"a/c": 1}}, {"five": {"a/b": 5}}):
        with pytest.raises(ValueError, match="cells"):
            count(entry | wrong, known)


def test_a_paper_prints_something_for_a_preset_that_is_its_system_alone():
    row = published("diet-pate-mnist")
    assert (row.table, row.accuracy, row.epsilon) == ("Section 5.1", 90.18, 6)
    assert published("diet-pate-mnist-small") is None
    assert published("terrine-digits") is None


def test_a_table_that_is_not_there_is_refused_with_those_that_are():
    ttac = papers()["ttac"]
    assert {row.table for row in ttac.chosen("Table 1")} == {"Table 1"}
    with pytest.raises(SettingError, match=r"no rows of 'Table 2' here, but of Table 1"):
        ttac.chosen("Table 2")
    with pytest.raises(SettingError, match=r"Figure 2 of ttac is made by python benchmarks/heterogeneous.py"):
        ttac.chosen("Figure 2")


def test_a_table_that_cannot_be_made_here_is_refused_with_the_reason():
    with pytest.raises(SettingError, match=r"Table 1 of diet-pate is not possible here: .*not public"):
        papers()["diet-pate"].chosen("Table 1")
