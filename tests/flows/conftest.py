"""A small project in a folder of its own, and one Prefect server for all tests of flows."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

SMALL = {
    "description": "digits with few teachers and few queries, for tests",
    "data": {"name": "digits", "size": 8},
    "partition": {"teachers": 12},
    "queries": {"count": 120, "batch": 20},
    "backbone": {"projection": 60},
    "teachers": {"per_task": 5},
    "aggregation": {"mechanism": "histogram", "sigma": 6, "epsilon": 8},
    "tracking": {"register_student": False},
}


@pytest.fixture(scope="session")
def prefect_server():
    """A temporary Prefect server and database for the whole session, without the services that look for work."""
    with pytest.MonkeyPatch.context() as patch:
        for service in ("CANCELLATION_CLEANUP", "FOREMAN", "LATE_RUNS", "PAUSE_EXPIRATIONS", "SCHEDULER", "TRIGGERS"):
            patch.setenv(f"PREFECT_SERVER_SERVICES_{service}_ENABLED", "false")
        from prefect.testing.utilities import prefect_test_harness

        with prefect_test_harness(server_startup_timeout=180):
            yield


def make_project(folder: Path, repository: Path) -> Path:
    """Lay out a project that a fresh clone would have, with one small preset, selected."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("params.yaml", "dvc.yaml", ".dvcignore"):
        shutil.copy(repository / name, folder)
    (folder / ".dvc").mkdir()
    shutil.copy(repository / ".dvc" / "config", folder / ".dvc")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "small.yaml").write_text(yaml.safe_dump(SMALL))
    text = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(text.replace(text.splitlines()[_run_line(text)], "run: small"))
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def _run_line(text: str) -> int:
    return next(number for number, line in enumerate(text.splitlines()) if line.startswith("run:"))


@pytest.fixture
def project(tmp_path, pytestconfig, monkeypatch):
    """An empty small project; TERRINE_ROOT points at it."""
    folder = make_project(tmp_path / "project", pytestconfig.rootpath)
    monkeypatch.setenv("TERRINE_ROOT", str(folder))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def finished_project(request, tmp_path_factory, pytestconfig):
    """A small project whose run the flow has completed, with the noise of a real release.

    It takes a while, so it is made once for all processes of a test run; nobody changes it (see `finished`).
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, complete = shared / "finished" / "project", shared / "finished" / "complete"
    with FileLock(shared / "finished.lock"):
        if not complete.exists():
            request.getfixturevalue("prefect_server")
            make_project(folder, pytestconfig.rootpath)
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
    """Copy MLflow's database, whose first migrations take seconds; what is logged from now on goes to the target."""
    shutil.copy(source / "mlflow.db", target)
    with closing(sqlite3.connect(target / "mlflow.db")) as database, database:
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


def set_small(project: Path, **sections: dict) -> None:
    """Change sections of the small preset."""
    from tasks.config.params import lay_over

    path = project / "experiments" / "small.yaml"
    path.write_text(yaml.safe_dump(lay_over(yaml.safe_load(path.read_text()), sections)))
