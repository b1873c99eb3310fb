"""Reproduction: the rows of a paper are made, each once."""

from contextlib import contextmanager

import pytest

import flows.sweep
from benchmarks.reproduce import Paper, PaperRow, Row, figures, main, time_left
from tasks.config.params import validate
from tasks.config.presets import resolve
from tasks.runtime.run import Run
from tasks.runtime.store import Folders, write_json
from terrine.errors import InputError
from tests.conftest import REPOSITORY

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


def stands_for(root, runs):
    """Write what runs stand for beside a project's parameters; returns the project."""
    (root / "experiments").mkdir()
    (root / "params.yaml").write_bytes((REPOSITORY / "params.yaml").read_bytes())
    for run, text in runs.items():
        (root / "experiments" / f"{run}.yaml").write_text(text)
    return root


def took(root, run, **stages):
    folders = Folders(root, run)
    for path in (folders.evaluation, folders.statement):
        write_json(path, {})
    for stage, seconds in stages.items():
        write_json(folders.timings / f"{stage}.json", {"stage": stage, "seconds": seconds})


def test_how_long_the_rest_takes_is_told_by_what_finished_runs_took(tmp_path):
    stands_for(tmp_path, {run: f"seed: {seed}\n" for seed, run in enumerate("abcde")})
    took(tmp_path, "a", teach=600.0)
    took(tmp_path, "b", teach=60.0)
    rows = [
        Row("slow", "slow", None, ("a", "c")),
        Row("quick", "quick", None, ("b", "d")),
        Row("new", "new", None, ("e",)),
    ]
    assert "about 10 minutes" in time_left(tmp_path, rows, ["c", "a"])
    assert "about 20 minutes" in time_left(tmp_path, rows, ["a", "c"])  # is to be made again
    assert "about 11 minutes" in time_left(tmp_path, rows, ["c", "d"])
    assert "about 6 minutes" in time_left(tmp_path, rows, ["e"])  # by the mean of both
    assert "about 1 minute from" in time_left(tmp_path, rows, ["d"])
    took(tmp_path, "b", teach=20.0)
    assert "; less than a minute from" in time_left(tmp_path, rows, ["d"])
    assert time_left(tmp_path, rows[2:], ["e"]) == ""


def test_what_a_run_takes_over_from_another_takes_no_time(tmp_path):
    """Other noise, other queries: the teachers are there. Another seed: they are trained again, once."""
    settings = (
        "seed: 0",
        "aggregation: {sigma: 7}",
        "queries: {count: 60}",
        "seed: 1",
        "{seed: 1, queries: {count: 60}}",
    )
    stands_for(tmp_path, {run: f"{text}\n" for run, text in zip("abcde", settings, strict=True)})
    took(tmp_path, "a", teach=1200.0, vote=600.0, student=120.0)
    rows = [Row("row", "preset", None, tuple("abcde"))]
    assert "about 2 minutes" in time_left(tmp_path, rows, ["b"])
    assert "about 12 minutes" in time_left(tmp_path, rows, ["c"])  # votes about other queries
    assert "about 32 minutes" in time_left(tmp_path, rows, ["d"])
    assert "about 44 minutes" in time_left(tmp_path, rows, ["d", "e"])
    took(tmp_path, "b", student=120.0)
    assert "about 32 minutes" in time_left(tmp_path, rows, ["d"])  # it has no teachers to take over


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """A project and a paper of three rows, one of them for a GPU; runs are noted down instead of made."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "params.yaml").write_bytes((REPOSITORY / "params.yaml").read_bytes())
    (tmp_path / "experiments" / "digits.yaml").write_text("base: terrine-digits\n")
    monkeypatch.setenv("TERRINE_ROOT", str(tmp_path))
    rows = (
        PaperRow("Table 1", "digits", 90.0, "wide", sets=("queries.count=60",)),
        PaperRow("Table 1", "digits", 91.0, "large", gpu=True),
        PaperRow("Table 1", "digits", 93.0, "high", sets=("queries.count=80",)),
        PaperRow("Table 2", "digits", 92.0, "other"),
    )
    paper = Paper("drawn", "Nobody 2020", "docs/drawn.md", rows, {"Figure 1": "python benchmarks/drawn.py"})
    monkeypatch.setattr("benchmarks.reproduce.papers", lambda: {"drawn": paper})
    monkeypatch.setattr("benchmarks.reproduce.open_run", lambda root, run: Run(root, run, None))
    monkeypatch.setattr("benchmarks.reproduce.figures", lambda run, published: RUN)
    monkeypatch.setattr("flows.stages.changed_stages", lambda *of: [])
    made = []

    def make(root, run):
        made.append(run)
        for path in (Folders(root, run).evaluation, Folders(root, run).statement):
            write_json(path, {})

    monkeypatch.setattr("flows.sweep.make_run", make)
    return made


def test_a_papers_rows_are_made_and_what_was_not_is_said(drawn, tmp_path, capsys):
    """A row of a paper is a run with its own overrides; rows for a GPU are left out and named."""
    main(["drawn", "--finished"])
    nothing = capsys.readouterr().out
    assert drawn == []
    assert [path.name for path in (tmp_path / "experiments").iterdir()] == ["digits.yaml"]
    assert "15 runs of 3 rows are not made" in nothing
    main(["drawn", "--seeds", "2", "--table", "Table 1", "--markdown"])
    printed = capsys.readouterr().out
    assert len(set(drawn)) == 4
    assert "Run 1 of 4, " in printed
    assert "| Table 1: wide | 80.00 | 90.00 | 5.9900 |" in printed
    assert "1 row needs a GPU" in printed
    assert "Table 2" not in printed
    main(["drawn", "--seeds", "2", "--table", "Table 1"])
    assert len(drawn) == 4  # finished runs are not made again
    with pytest.raises(SystemExit):
        main(["digits", "--table", "Table 1"])
    assert "--table needs a paper: drawn" in capsys.readouterr().err


def test_overrides_are_named_and_stop_the_comparison_with_the_paper(drawn, capsys):
    main(["drawn", "--seeds", "1", "--table", "Table 2", "--set", "data.name=digits"])
    printed = capsys.readouterr().out
    assert "--set data.name=digits" in printed.replace("\n", " ")
    assert "theirs" not in printed
    assert "92.00" not in printed


def test_committed_measurements_stand_beside_finished_runs(drawn, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.reproduce.committed_rows", lambda: {"Table 2: other": "91.23 ± 0.50"})
    main(["drawn", "--seeds", "1", "--table", "Table 2", "--finished"])
    assert "91.23 ± 0.50" in capsys.readouterr().out


def test_with_workers_the_seeds_of_a_row_are_made_together(drawn, tmp_path, monkeypatch):
    begun = []

    @contextmanager
    def makers(workers):
        def submit(root, run):
            begun.append(run)
            return flows.sweep._here(root, run)

        assert workers == 2
        yield submit

    monkeypatch.setattr("benchmarks.reproduce.run_makers", makers)
    main(["drawn", "--seeds", "2", "--table", "Table 1", "--workers", "2"])
    assert [resolve(tmp_path, run).queries.count for run in begun] == [60, 60, 80, 80]


def test_a_row_that_cannot_be_made_leaves_the_others(drawn, monkeypatch, capsys):
    make = flows.sweep.make_run

    def refuse_the_first(root, run):
        if not drawn:
            drawn.append("refused")
            raise InputError("There are no digits here.")
        make(root, run)

    monkeypatch.setattr("flows.sweep.make_run", refuse_the_first)
    with pytest.raises(SystemExit) as ended:
        main(["drawn", "--seeds", "1", "--table", "Table 1"])
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert len(drawn) == 2
    assert "Table 1: wide: not made: There are no digits here." in printed
    assert "1 row has one run" in printed


def test_tables_compare_accuracies_as_served_and_show_those_in_batches_beside_a_paper(tmp_path, monkeypatch):
    run = Run(tmp_path, "own", validate({"data": {"public_benchmark": True}}))
    known = dict.fromkeys(("epsilon", "delta", "answered", "queried", "queries", "teachers"), 1)
    monkeypatch.setattr("benchmarks.reproduce.read_statement", lambda _: known)
    write_json(run.folders.evaluation, {"accuracy": 0.3, "in_batches": {"statistics": "current", "accuracy": 0.4}})
    found = figures(run)
    assert (found["accuracy"], found["in_batches"]) == (0.3, 0.4)
    paper = PaperRow("Table 1", "digits", 40)
    assert Row("own", "digits", None, (), figures=[found]).accuracy[0] == pytest.approx(30)
    assert Row("theirs", "digits", paper, (), figures=[found]).accuracy[0] == pytest.approx(40)
