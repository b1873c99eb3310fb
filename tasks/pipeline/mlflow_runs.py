"""MLflow runs: started with the first stage of a run, ended if one fails; MLflow's database and experiment.

The duration and the failure of a run depend on private records. So only a run with `tracking.private_metrics` (of a
public benchmark) has an MLflow run from its start, and keeps it as FAILED or KILLED if a stage fails. Any other gets
its MLflow run when it is finished (`tasks.pipeline.mlflow_logging`).
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tasks.config.presets import reproduce_command, resolve
from tasks.runtime.code_digest import code_version
from tasks.runtime.locks import lock_path
from tasks.runtime.run import Run
from tasks.runtime.stage_graph import PARAMETERS
from tasks.runtime.store import read_json, write_json
from terrine.files import sync_file, sync_folder
from terrine.locks import locked

if TYPE_CHECKING:
    from mlflow import MlflowClient

Logged = TypeVar("Logged")
StageRunner = Callable[[Path, str, str], None]
"""Runs a stage: called with the project, the run's name and the stage's."""

_logger = logging.getLogger(__name__)


def view(experiment: str) -> str:
    """Return the address in MLflow's UI, after the server's, that compares an experiment's runs, the lowest ε first."""
    order = "orderByKey=metrics.%60epsilon%60&orderByAsc=true"
    return f"#/experiments/{experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART&{order}"


def tracked(run_stage: StageRunner) -> StageRunner:
    """Return what runs a stage, and starts the run's MLflow run before the first, and marks it as failed if one fails.

    What is `auto` is settled by the stage `parameters`, so the MLflow run starts after it.
    """
    started = False

    def run_tracked(root: Path, name: str, stage: str) -> None:
        nonlocal started
        run = Run(root, name, resolve(root, name))
        if stage != PARAMETERS.name and not started and run.params.tracking.private_metrics:
            started = True
            attempt(run, partial(_start, run), "The run goes on without it.")
        try:
            run_stage(root, name, stage)
        except BaseException as error:
            if started:
                status = "FAILED" if isinstance(error, Exception) else "KILLED"
                attempt(run, partial(_end, run, status), "There it counts as running until the run is made again.")
            raise

    return run_tracked


def _start(run: Run) -> None:
    """Start an MLflow run. One that a killed process left is ended."""
    client, experiment = open_experiment(run)
    _end(run, "KILLED")
    tags = {"mlflow.note.content": f"    {reproduce_command(run.root, run.name, local=False)}", **code_tags(run)}
    identity = client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
    write_json(started_record(run), {"run_id": identity})


def _end(run: Run, status: str) -> None:
    """End the MLflow run that was started for a run, if there is one, with this status."""
    if started_record(run).is_file():
        open_experiment(run)[0].set_terminated(read_json(started_record(run))["run_id"], status)
        started_record(run).unlink()


def started_record(run: Run) -> Path:
    """Return the path of the record of an MLflow run that was started and not ended."""
    return run.folders.private / "tracking-started.json"


def open_experiment(run: Run) -> tuple[MlflowClient, str]:
    """Return MLflow's client for a run, and the id of its experiment, which is made if need be."""
    import mlflow

    settings = run.params.tracking
    mlflow.set_tracking_uri(run.database(settings.uri))
    if mlflow.get_experiment_by_name(settings.experiment) is None:
        mlflow.create_experiment(settings.experiment, artifact_location=(run.root / "mlartifacts").as_uri())
    return mlflow.MlflowClient(), mlflow.set_experiment(settings.experiment).experiment_id


def code_tags(run: Run) -> dict[str, str]:
    """Return the tags that name the code of this project."""
    return {"git_commit": code_version(run.root).get("commit", "none")}


def attempt(run: Run, log: Callable[[], Logged], later: str) -> Logged | None:
    """Log to MLflow, one process at a time; warn and return None if MLflow fails. later: a sentence of the warning."""
    try:
        create_database(run)
        with locked(lock_path(run.root, "tracking")):
            return log()
    except Exception as error:  # of any library that MLflow uses
        first = str(error).strip().partition("\n")[0]
        uri = run.params.tracking.uri
        _logger.warning("MLflow at %s could not log (%s: %s). %s", uri, type(error).__name__, first, later)
        return None


def create_database(run: Run) -> None:
    """Create MLflow's database if it is a file that does not exist, atomically: MLflow cannot resume its migrations."""
    name = run.database(run.params.tracking.uri).removeprefix("sqlite:///").partition("?")[0]
    if "://" in name or name == run.params.tracking.uri:
        return
    path = Path(name)
    with locked(lock_path(run.root, "tracking"), what=f"is creating {path.name}"):
        if path.is_file() and path.stat().st_size:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent) as folder:
            fresh, whole = Path(folder, "fresh.db"), Path(folder, "whole.db")
            _migrate(fresh)
            with closing(sqlite3.connect(fresh)) as connection:
                connection.execute("VACUUM INTO ?", (str(whole),))
            sync_file(whole)
            whole.replace(path)
            sync_folder(path.parent)


def _migrate(database: Path) -> None:
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{database}").search_experiments()
