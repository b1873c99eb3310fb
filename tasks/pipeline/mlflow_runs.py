"""MLflow's database, experiment and views. Runs are logged when they are finished (`tasks.pipeline.mlflow_logging`)."""

from __future__ import annotations

import json
import logging
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

from tasks.runtime.locks import lock_path
from tasks.runtime.run import Run
from terrine.files import sync_file, sync_folder
from terrine.locks import locked

if TYPE_CHECKING:
    from mlflow import MlflowClient

Logged = TypeVar("Logged")

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
