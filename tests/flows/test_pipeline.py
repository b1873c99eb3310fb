"""The whole pipeline on a small setting: two doors, one result; releases once; runs side by side."""

import json
import shutil
import subprocess
import sys

import pytest
import yaml

from tasks.presets import select_run
from tasks.store import Folders, folder_digest, read_json, read_table
from tasks.versioning import changed_stages

DETERMINISTIC = (
    "dataset/train_images.npy",
    "partition/assignment.npy",
    "teachers/heads.safetensors",
    "votes/votes.npy",
)
REPLAY = {"aggregation": {"noise": "replay"}}


def set_small(project, **sections):
    """Change sections of the small preset."""
    path = project / "experiments" / "small.yaml"
    values = yaml.safe_load(path.read_text())
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section
    path.write_text(yaml.safe_dump(values))


def run_flow(**arguments):
    from flows.pipeline import pipeline

    return pipeline(**arguments)


def ledger_rows(command):
    return json.loads(command("terrine", "ledger", "show", "--json").stdout)


@pytest.mark.slow
def test_both_doors_lead_to_one_result(project, command, prefect_server, tmp_path, pytestconfig, monkeypatch):
    set_small(project, **REPLAY)
    assert run_flow() == "small"
    folders = Folders(project, "small")
    for path in (folders.report, folders.statement, folders.evaluation, folders.student / "head.safetensors"):
        assert path.is_file(), path
    lock = (project / "dvc.lock").read_text()
    assert json.loads(command("dvc", "status", "--json").stdout) == {}
    assert "Data and pipelines are up to date" in command("dvc", "repro").stdout
    done = command("terrine", "run")
    assert "nothing to do" in done.stdout
    assert (project / "dvc.lock").read_text() == lock

    from tests.flows.conftest import make_project

    other = make_project(tmp_path / "other", pytestconfig.rootpath)
    set_small(other, **REPLAY)
    monkeypatch.setenv("TERRINE_ROOT", str(other))
    subprocess.run(
        [sys.executable, "-m", "dvc", "repro"],
        cwd=other,
        check=True,
        capture_output=True,
        env=_environment(other),
    )
    assert changed_stages(other, "small") == []
    twin = Folders(other, "small")
    for name in DETERMINISTIC:
        assert (folders.private / name).read_bytes() == (twin.private / name).read_bytes(), name
    assert folder_digest(folders.images) == folder_digest(twin.images)
    assert folder_digest(folders.backbone) == folder_digest(twin.backbone)
    assert (folders.student / "head.safetensors").read_bytes() == (twin.student / "head.safetensors").read_bytes()
    assert read_json(folders.evaluation) == read_json(twin.evaluation)
    run_flow()
    assert changed_stages(other, "small") == []


def _environment(project):
    import os
    from pathlib import Path

    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return clean | {
        "TERRINE_ROOT": str(project),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}",
    }


@pytest.mark.slow
def test_a_forced_release_returns_the_stored_answers_and_costs_nothing(project, command, prefect_server):
    run_flow()
    folders = Folders(project, "small")
    answers = read_table(folders.answers / "answers.parquet")
    statement = read_json(folders.statement)
    rows = ledger_rows(command)
    assert statement["noise"] == "secure"
    command("dvc", "repro", "--force", "--single-item", "aggregate@small")
    assert read_table(folders.answers / "answers.parquet").equals(answers)
    assert read_json(folders.statement) == statement
    shutil.rmtree(folders.release)
    run_flow()
    assert read_table(folders.answers / "answers.parquet").equals(answers)
    assert ledger_rows(command) == rows
    assert "intact" in command("terrine", "ledger", "verify").stdout


@pytest.mark.slow
def test_runs_live_side_by_side_and_a_run_made_before_is_up_to_date(project, command, prefect_server):
    first = run_flow()
    before = folder_digest(Folders(project, first).release)
    second = run_flow(overrides=["aggregation.epsilon=4"])
    assert second.startswith("small-")
    assert (
        read_json(Folders(project, second).statement)["epsilon"]
        < read_json(Folders(project, first).statement)["epsilon"]
    )
    for private in ("votes/votes.npy", "teachers/heads.safetensors"):
        assert (Folders(project, first).private / private).read_bytes() == (
            Folders(project, second).private / private
        ).read_bytes()
    assert changed_stages(project, first) == []
    assert changed_stages(project, second) == []
    assert folder_digest(Folders(project, first).release) == before
    dataset = ledger_rows(command)[0]
    assert len(dataset["releases"]) == 2
    singles = [release["epsilon"] for release in dataset["releases"]]
    assert max(singles) < dataset["epsilon_spent"] < sum(singles)


def test_a_budget_that_does_not_cover_the_run_is_refused_and_nothing_is_released(project, command, prefect_server):
    from terrine.errors import BudgetError

    set_small(project, data={"public_benchmark": False}, ledger={"epsilon": 1}, tracking={"private_metrics": False})
    with pytest.raises(BudgetError, match="budget"):
        run_flow()
    assert not Folders(project, "small").answers.exists()
    assert ledger_rows(command)[0]["releases"] == []


def test_bad_input_leaves_nothing_behind(project, prefect_server):
    from terrine.errors import InputError

    source = project / "images.npz"
    source.write_bytes(b"PK\x03\x04 cut short")
    set_small(
        project,
        data={"name": "npz", "path": str(source), "public_benchmark": False},
        ledger={"epsilon": 8, "account": "trial"},
        tracking={"private_metrics": False},
    )
    with pytest.raises(InputError, match=r"images\.npz"):
        run_flow()
    private = project / "data" / "private"
    assert not (private / "small" / "dataset").exists()
    assert not (private / "ledger" / "ledger.db").exists()


def test_selecting_another_run_does_not_disturb_one_that_is_complete(project):
    select_run(project, "elsewhere")
    assert changed_stages(project, "small") != []
