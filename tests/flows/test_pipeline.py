"""The whole pipeline on a small setting: `dvc repro` and the flow agree, releases happen once, runs coexist."""

import json
import shutil
import sys

import pytest

from tasks.pipeline.graph import MAIN
from tasks.runtime import code_digest as code
from tasks.runtime.store import Folders, read_json, read_table
from tasks.runtime.versioning import changed_stages
from tests.command_line import terrine
from tests.flows.conftest import command, dvc, make_project, set_small, take_over_tracking
from tests.folder_digest import folder_digest

DETERMINISTIC = (
    "dataset/train_images.npy",
    "partition/assignment.npy",
    "teachers/heads.safetensors",
    "votes/votes.npy",
)


def run_flow(**arguments):
    from flows.pipeline import pipeline

    return pipeline(**arguments)


def ledger_rows():
    return json.loads(terrine("ledger", "--json"))


@pytest.mark.slow
def test_both_doors_lead_to_one_result(finished, prefect_server, tmp_path, monkeypatch):
    folders = Folders(finished, "small")
    for path in (folders.report, folders.statement, folders.evaluation, folders.student / "head.safetensors"):
        assert path.is_file(), path
    lock = (finished / "dvc.lock").read_text()
    assert json.loads(dvc(finished, "status", "--json")) == {}
    assert "Data and pipelines are up to date" in dvc(finished, "repro")
    assert "nothing to do" in terrine("run")
    assert (finished / "dvc.lock").read_text() == lock

    other = make_project(tmp_path / "other")
    take_over_tracking(finished, other)
    # With the ledger: what was drawn with real noise is returned, so that what follows from it can be compared, too.
    shutil.copytree(folders.root / "data" / "private" / "ledger", other / "data" / "private" / "ledger")
    monkeypatch.setenv("TERRINE_ROOT", str(other))
    (other / "tasks").mkdir()
    (other / "tasks" / "__init__.py").write_text("raise ImportError('a folder of the user, not ours')")
    # A stage is a process: the first ones as DVC starts them, the others without another ten times the same imports.
    command(other, sys.executable, "-m", "dvc", "repro", "dataset")
    assert changed_stages(other, "small", MAIN) == MAIN.names[2:]
    dvc(other, "repro")
    assert changed_stages(other, "small", MAIN) == []
    twin = Folders(other, "small")
    for name in DETERMINISTIC:
        assert (folders.private / name).read_bytes() == (twin.private / name).read_bytes(), name
    assert folder_digest(folders.images) == folder_digest(twin.images)
    assert folder_digest(folders.backbone) == folder_digest(twin.backbone)
    assert (folders.student / "head.safetensors").read_bytes() == (twin.student / "head.safetensors").read_bytes()
    assert read_json(folders.evaluation) == read_json(twin.evaluation)
    run_flow()
    assert changed_stages(other, "small", MAIN) == []


@pytest.mark.slow
def test_a_stage_whose_code_changed_runs_again_and_no_other(finished, monkeypatch):
    assert changed_stages(finished, "small", MAIN) == []
    plain = code._digest
    monkeypatch.setattr(code, "_digest", lambda name: "new" if name == "terrine.measures" else plain(name))
    assert changed_stages(finished, "small", MAIN) == ["parameters", "evaluate"]


@pytest.mark.slow
def test_a_forced_release_returns_the_stored_answers_and_costs_nothing(finished, prefect_server):
    folders = Folders(finished, "small")
    answers = read_table(folders.answers / "answers.parquet")
    statement = read_json(folders.statement)
    rows = ledger_rows()
    assert statement["noise"] == "secure"
    dvc(finished, "repro", "--force", "--single-item", "aggregate")
    assert read_table(folders.answers / "answers.parquet").equals(answers)
    assert read_json(folders.statement) == statement
    shutil.rmtree(folders.release)
    run_flow()
    assert read_table(folders.answers / "answers.parquet").equals(answers)
    assert ledger_rows() == rows
    assert terrine("ledger", "--verify").startswith("Terrine ledger, ")


@pytest.mark.slow
def test_runs_live_side_by_side_and_a_run_made_before_is_up_to_date(finished, prefect_server):
    first = "small"
    before = folder_digest(Folders(finished, first).release)
    second = run_flow(overrides=["aggregation.epsilon=4"])
    assert second.startswith("small-")
    assert (
        read_json(Folders(finished, second).statement)["epsilon"]
        < read_json(Folders(finished, first).statement)["epsilon"]
    )
    for private in ("votes/votes.npy", "teachers/heads.safetensors"):
        assert (Folders(finished, first).private / private).read_bytes() == (
            Folders(finished, second).private / private
        ).read_bytes()
    assert changed_stages(finished, first, MAIN) == []
    assert changed_stages(finished, second, MAIN) == []
    assert folder_digest(Folders(finished, first).release) == before
    dataset = ledger_rows()[0]
    assert len(dataset["releases"]) == 2
    singles = [release["epsilon"] for release in dataset["releases"]]
    assert max(singles) < dataset["epsilon_spent"] < sum(singles)


def test_a_budget_that_does_not_cover_the_run_is_refused_and_nothing_is_released(project, prefect_server):
    from terrine.errors import BudgetError

    private = {"public_benchmark": False}
    set_small(project, data=private, tracking={"private_metrics": False}, ledger={"epsilon": 1, "account": "trial"})
    with pytest.raises(BudgetError, match="budget"):
        run_flow()
    assert not Folders(project, "small").answers.exists()
    assert ledger_rows()[0]["releases"] == []


def test_bad_input_leaves_nothing_behind(project, prefect_server):
    from terrine.errors import InputError

    source = project / "images.npz"
    source.write_bytes(b"PK\x03\x04 cut short")
    set_small(
        project,
        data={"name": "npz", "path": str(source)},
        ledger={"epsilon": 8, "account": "trial"},
    )
    with pytest.raises(InputError, match=r"images\.npz"):
        run_flow()
    private = project / "data" / "private"
    assert not (private / "small" / "dataset").exists()
    assert not (private / "ledger" / "ledger.db").exists()
