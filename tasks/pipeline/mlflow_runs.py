"""Start and end of MLflow runs, and MLflow's database and experiment.

Duration and failure of a run depend on private records. So only a run with `tracking.private_metrics` (on a public
benchmark) has an MLflow run from its start and keeps it as FAILED or KILLED if a stage fails. Other runs are logged
when they are finished (`tasks.pipeline.mlflow_logging`).
"""

from __future__ import annotations

import json
import logging
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

from tasks.config.presets import reproduce_command, resolve
from tasks.runtime.code_digest import git_commit
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
"""Function that runs a stage, called with the project, the run's name and the stage's name."""

SWEEP = "terrine.sweep"
"""Tag of a sweep's MLflow run, the parent of its candidates."""

_logger = logging.getLogger(__name__)


def runs_view(experiment: str) -> str:
    """Return the MLflow UI path of an experiment's runs: charts, lowest ε first, candidates beside other runs."""
    order = "orderByKey=metrics.%60epsilon%60&orderByAsc=true"
    return f"#/experiments/{experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART&{order}"


def sweep_view(client: MlflowClient, experiment: str) -> str | None:
    """Return the MLflow UI path that compares the latest sweep's candidates, or None without a sweep.

    The axes of the first chart are the varied settings and the metric that was logged first.
    """
    sweeps = client.search_runs([experiment], f"tags.`{SWEEP}` LIKE '%'", max_results=1)
    if not sweeps:
        return None
    own = f"tags.`mlflow.parentRunId` = '{sweeps[0].info.run_id}'"
    candidates = client.search_runs([experiment], own, order_by=["metrics.epsilon"])
    runs, experiments = [run.info.run_id for run in candidates], [experiment]
    return f"#/compare-runs?{urlencode({'runs': json.dumps(runs), 'experiments': json.dumps(experiments)})}"


def tracked(run_stage: StageRunner) -> StageRunner:
    """Wrap a stage runner: start the MLflow run before the first stage, and mark it as failed if a stage fails.

    The MLflow run starts after the stage `parameters`, which chooses settings that are `auto`.
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
    """Start an MLflow run, after ending one that a killed process left open."""
    client, experiment = open_experiment(run)
    _end(run, "KILLED")
    tags = {
        "mlflow.note.content": f"    {reproduce_command(run.root, run.name, local=False)}",
        "git_commit": git_commit(run.root),
    }
    identity = client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
    write_json(started_record(run), {"run_id": identity})


def _end(run: Run, status: str) -> None:
    """End the open MLflow run of a run, if any, with this status."""
    if started_record(run).is_file():
        open_experiment(run)[0].set_terminated(read_json(started_record(run))["run_id"], status)
        started_record(run).unlink()


def started_record(run: Run) -> Path:
    """Return the path of the file with the ID of the open MLflow run."""
    return run.folders.private / "tracking-started.json"


def open_experiment(run: Run) -> tuple[MlflowClient, str]:
    """Return MLflow's client for a run and the ID of its experiment, which is created if necessary."""
    import mlflow

    settings = run.params.tracking
    mlflow.set_tracking_uri(run.database(settings.uri))
    if mlflow.get_experiment_by_name(settings.experiment) is None:
        mlflow.create_experiment(settings.experiment, artifact_location=(run.root / "mlartifacts").as_uri())
    return mlflow.MlflowClient(), mlflow.set_experiment(settings.experiment).experiment_id


def attempt(run: Run, log: Callable[[], Logged], later: str) -> Logged | None:
    """Call `log` in one process at a time. If MLflow fails, return None after a warning that ends with `later`."""
    try:
        create_database(run)
        with locked(lock_path(run.root, "tracking")):
            return log()
    except Exception as error:  # any library that MLflow uses may raise
        first = str(error).strip().partition("\n")[0]
        uri = run.params.tracking.uri
        _logger.warning("MLflow at %s could not log (%s: %s). %s", uri, type(error).__name__, first, later)
        return None


def create_database(run: Run) -> None:
    """Create MLflow's SQLite file atomically if it does not exist, because MLflow cannot resume migrations."""
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
