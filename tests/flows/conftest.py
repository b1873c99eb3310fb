"""Fixtures: a small project, and one Prefect server for all tests of flows."""

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from filelock import FileLock

from benchmarks.crash.project import set_default, small_project
from terrine.ports import free_ports


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A folder that all processes of a test run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def _migrated(pytestconfig, name, migrate):
    """Return an empty migrated SQLite database, which is kept for later test runs because migrations are slow."""
    kept = pytestconfig.cache.mkdir("databases") / f"{name}.db"
    with FileLock(kept.with_suffix(".lock")), tempfile.TemporaryDirectory() as folder:
        if not kept.exists():
            migrate(fresh := Path(folder, "fresh.db"))
            with contextlib.closing(sqlite3.connect(fresh)) as connection:
                connection.execute("VACUUM INTO ?", (str(whole := kept.with_suffix(".new")),))
            whole.replace(kept)
    return kept


@pytest.fixture(scope="session")
def prefect_database(pytestconfig):
    """An empty database of Prefect."""

    def migrate(path):
        url = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{path}"}
        program = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
        subprocess.run(program, env=os.environ | url, capture_output=True, check=True)

    return _migrated(pytestconfig, f"prefect-{version('prefect')}", migrate)


@pytest.fixture(scope="session")
def mlflow_database(pytestconfig):
    """An empty database of MLflow."""

    def migrate(path):
        from mlflow import MlflowClient

        MlflowClient(f"sqlite:///{path}").search_experiments()

    return _migrated(pytestconfig, f"mlflow-{version('mlflow')}", migrate)


@pytest.fixture(scope="session")
def prefect_server(run_folder, prefect_database):
    """A Prefect server with a temporary database and without the services that look for work.

    It is one for all processes of a test run: the first that asks starts it, the last that is done ends it.
    """
    from prefect.context import _temporary_global_settings_context, get_settings_context
    from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

    place = run_folder / "prefect.json"
    with FileLock(f"{place}.lock"):
        server = json.loads(place.read_text()) if place.exists() else _start_server(run_folder, prefect_database)
        place.write_text(json.dumps(server | {"users": server["users"] + 1}))
    # Set globally, as in Prefect's test harness, because Prefect's threads would start another server.
    with (
        temporary_settings({PREFECT_API_URL: server["url"], PREFECT_LOGGING_TO_API_ENABLED: False}),
        _temporary_global_settings_context(get_settings_context()),
    ):
        yield
    with FileLock(f"{place}.lock"):
        server = json.loads(place.read_text())
        if server["users"] > 1:
            place.write_text(json.dumps(server | {"users": server["users"] - 1}))
        else:
            place.unlink()
            os.kill(server["process"], signal.SIGTERM)


def _start_server(folder, database):
    """Start a Prefect server in a new folder; return its process, URL and number of users."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    shutil.copy(database, folder / "prefect.db")
    idle = ("CANCELLATION_CLEANUP", "FOREMAN", "LATE_RUNS", "PAUSE_EXPIRATIONS", "SCHEDULER", "TRIGGERS")
    environment = os.environ | {f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in idle}
    environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
    port = free_ports()[0]
    program = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--no-ui",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with open(folder / "prefect.log", "wb") as stream:
        process = subprocess.Popen(program, env=environment, stdout=stream, stderr=stream)
    url, deadline = f"http://127.0.0.1:{port}/api", time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=10):
            return {"process": process.pid, "url": url, "users": 0}
        time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"The server did not start: {folder / 'prefect.log'}")


def make_project(folder: Path) -> Path:
    """Lay out a project that a fresh clone would have, with one small preset, selected."""
    return small_project(folder)


@pytest.fixture
def project(tmp_path, mlflow_database, monkeypatch):
    """A small project with no run but an empty database of MLflow; TERRINE_ROOT points at it."""
    folder = make_project(tmp_path / "project")
    shutil.copy(mlflow_database, folder / "mlflow.db")
    monkeypatch.setenv("TERRINE_ROOT", str(folder))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def finished_project(request, run_folder, mlflow_database):
    """A small project whose run the flow has completed, with the noise of a real release.

    It is slow, so it is made once for all processes of a test run. Tests change copies of it (see `finished`).
    """
    folder, complete = run_folder / "finished" / "project", run_folder / "finished" / "complete"
    with FileLock(run_folder / "finished.lock"):
        if not complete.exists():
            request.getfixturevalue("prefect_server")
            make_project(folder)
            shutil.copy(mlflow_database, folder / "mlflow.db")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TERRINE_ROOT", str(folder))
                patch.chdir(folder)
                from flows.pipeline import pipeline

                assert pipeline() == "small"
            complete.touch()
    return folder


@pytest.fixture
def finished(finished_project, tmp_path, monkeypatch):
    """A copy of the finished project; TERRINE_ROOT points at it."""
    folder = tmp_path / "project"
    shutil.copytree(finished_project, folder)
    take_over_tracking(finished_project, folder)
    monkeypatch.setenv("TERRINE_ROOT", str(folder))
    monkeypatch.chdir(folder)
    return folder


def take_over_tracking(source: Path, target: Path) -> None:
    """Copy MLflow's database; what is logged from now on goes to the target."""
    shutil.copy(source / "mlflow.db", target)
    with contextlib.closing(sqlite3.connect(target / "mlflow.db")) as database, database:
        moved = "UPDATE experiments SET artifact_location = replace(artifact_location, ?, ?)"
        database.execute(moved, (source.as_uri(), target.as_uri()))


def environment_of(project: Path) -> dict[str, str]:
    """Return the environment of a command in a project: this Python first in PATH, and no Prefect server."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    return clean | {"TERRINE_ROOT": str(project), "PATH": path}


def command(project: Path, *arguments: str) -> str:
    """Run a command in a project and return what it wrote to its standard output."""
    done = subprocess.run(
        arguments,
        cwd=project,
        env=environment_of(project),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{arguments} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def dvc(project: Path, *words: str) -> str:
    """Run a command of DVC in this process, and the stages that it calls; return what it wrote.

    Separate processes would spend seconds on imports; `command` starts them as a user does.
    """
    from dvc.cli import main
    from dvc.stage import run

    from flows.cli import app

    def here(_executable, called, *, cwd, **_options):
        program, *arguments = shlex.split(called)
        assert program == "terrine"
        with contextlib.chdir(cwd):
            app(arguments, standalone_mode=False)

    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(run, "_run", here)
        patch.setenv("DVC_TEST", "1")  # else it writes JSON past what stands for the standard output here
        patch.setenv("TERRINE_ROOT", str(project))
        patch.chdir(project)
        status = main(list(words))
    assert status == 0, f"dvc {words} failed:\n{output.getvalue()[-4000:]}"
    return output.getvalue()


def forked(work: Callable[[], None]) -> int:
    """Do something in a fork of this process, which has loaded what it needs; return the fork's number."""
    number = os.fork()
    if number == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return number


def set_small(project: Path, **sections: dict) -> None:
    """Change sections of the small preset."""
    from tasks.config.params import merge_overrides
    from tasks.config.presets import read_preset

    known = dict(read_preset(project, "small").overrides)
    if "name" in sections.get("data", {}):  # what params.yaml says about the data before does not hold for others
        known["data"] = {key: value for key, value in known["data"].items() if key != "public_benchmark"}
        known["tracking"] = {key: value for key, value in known["tracking"].items() if key != "private_metrics"}
    set_default(project, "small", merge_overrides(known, sections))
