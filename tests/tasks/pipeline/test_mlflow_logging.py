"""A failure of MLflow does not fail a finished run: it is a warning, and the run is logged later."""

import logging
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient

from flows.cli.run import log_again
from tasks.config.params import validate
from tasks.pipeline import mlflow_logging as tracking
from tasks.pipeline import mlflow_runs
from tasks.pipeline.graph import MAIN
from tasks.reports.accuracy import known_accuracy
from tasks.runtime.run import Run
from tasks.runtime.staleness import data_settings_digest
from tasks.runtime.store import read_json, write_json


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path, "small", validate({"data": {"public_benchmark": True}}))


def fill_the_disk(database):
    database.write_bytes(b"SQLite format 3\0, and no more")
    raise OSError(28, "No space left on device")


def test_a_disk_that_is_full_while_the_first_database_is_laid_out_is_a_warning(run, monkeypatch, caplog):
    record = run.folders.private / "tracking.json"
    write_json(record, {"run_id": "of an earlier time"})
    write_json(run.folders.dataset / "manifest.json", {"data_settings_digest": data_settings_digest(run.params)})
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(mlflow_runs, "_migrate", fill_the_disk)
        assert tracking.log_finished(run, MAIN, {}) is None
    assert [record.getMessage() for record in caplog.records] == [
        "MLflow at sqlite:///mlflow.db could not log (OSError: [Errno 28] No space left on device). The run is "
        "complete without it; log it later: terrine run small"
    ]
    assert not record.exists()
    assert not list(run.root.glob("*mlflow.db*"))
    (run.root / "mlflow.db").touch()  # of a migration that was killed at its beginning
    monkeypatch.setattr(mlflow_runs, "_migrate", lambda database: database.write_bytes(b""))
    monkeypatch.setattr(tracking, "_log", lambda *_: {"run_id": "1234"})
    assert tracking.log_finished(run, MAIN, {}) == "1234"
    assert read_json(record) == {"run_id": "1234"}


def test_a_complete_run_that_mlflow_did_not_take_is_logged_once(run, monkeypatch):
    logged = []
    monkeypatch.setattr(tracking, "log_run", SimpleNamespace(fn=logged.append))
    log_again(run)
    assert logged == [run]
    write_json(run.folders.private / "tracking.json", {"run_id": "1234"})
    log_again(run)
    assert logged == [run]


def test_areas_of_findings_are_metrics_of_public_data_under_names_that_mlflow_takes(run):
    entries = [{"class": "Pleural (other)", "auc": 0.7}, {"class": "mass", "auc": None}]
    write_json(run.folders.evaluation, {"accuracy": 0.8, "auc": 0.7, "per_class": entries})
    assert known_accuracy(run) == {"accuracy": 0.8, "auc": 0.7, "finding_auc_0_Pleural _other_": 0.7}
    private = validate({"data": {"public_benchmark": False}, "ledger": {"account": "a", "epsilon": 1}})
    assert known_accuracy(Run(run.root, run.name, private)) == {}


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    given = {"data": {"public_benchmark": True}, "tracking": {"uri": uri}}
    monkeypatch.setattr(mlflow_runs, "resolve", lambda root, name: validate(given))
    monkeypatch.setattr(mlflow_runs, "reproduce_command", lambda root, name, local: f"terrine run --preset {name}")
    return tmp_path, given, MlflowClient(uri)


def states(client):
    experiments = [each.experiment_id for each in client.search_experiments()]
    return [(run.info.run_name, run.info.status) for run in client.search_runs(experiments)]


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_a_run_that_is_stopped_is_in_mlflow_from_its_first_stage_and_is_kept(project, error, status):
    root, _, client = project
    seen = []

    def run_stage(root, name, stage):
        seen.append((stage, states(client)))
        if stage == "vote":
            raise error("stop")

    run_one = mlflow_runs.tracked(run_stage)
    for stage in ("parameters", "dataset"):
        run_one(root, "small", stage)
    with pytest.raises(error, match="stop"):
        run_one(root, "small", "vote")
    running = [("small", "RUNNING")]
    assert seen == [("parameters", []), ("dataset", running), ("vote", running)]
    assert states(client) == [("small", status)]
    mlflow_runs.tracked(run_stage)(root, "small", "dataset")
    assert sorted(states(client)) == sorted([("small", status), ("small", "RUNNING")])


def test_what_a_killed_process_left_is_ended_by_the_next(project):
    root, _, client = project
    for _ in range(2):
        mlflow_runs.tracked(lambda *_: None)(root, "small", "dataset")
    assert sorted(states(client)) == [("small", "KILLED"), ("small", "RUNNING")]


def test_of_private_data_mlflow_sees_neither_the_start_nor_a_failure(project):
    root, given, client = project
    given |= {"data": {"public_benchmark": False}, "ledger": {"account": "a", "epsilon": 1}}

    def run_stage(*_):
        raise ValueError("one class has 3 records")

    with pytest.raises(ValueError, match="3 records"):
        mlflow_runs.tracked(run_stage)(root, "small", "dataset")
    assert states(client) == []


@pytest.mark.parametrize("allowed", [True, False])
def test_only_a_run_that_may_log_private_figures_logs_them(tmp_path, allowed):
    given = {"data": {"public_benchmark": True}, "tracking": {"private_metrics": allowed}}
    run = Run(tmp_path, "small", validate(given))
    write_json(run.folders.accounting / "figures.json", {"consensus_mean": 0.7, "notice": "PRIVATE"})
    metrics = tracking._metrics(run, {"epsilon": 1.0, "epsilon_guaranteed": 2.0, "unit": "record"})
    assert (metrics["epsilon"], metrics["epsilon_guaranteed"]) == (1.0, 2.0)
    assert {name: metrics[name] for name in metrics if name.startswith("private_")} == (
        {"private_consensus_mean": 0.7} if allowed else {}
    )
