"""A small project in a folder of its own, and one Prefect server for all tests of flows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

SMALL = {
    "description": "digits with few teachers and few queries, for tests",
    "data": {"name": "digits", "size": 16},
    "partition": {"teachers": 12},
    "queries": {"count": 120, "batch": 20},
    "backbone": {"projection": 60},
    "teachers": {"per_task": 5},
    "aggregation": {"mechanism": "histogram", "sigma": 6, "epsilon": 8},
    "tracking": {"register_student": False},
}


@pytest.fixture(scope="session")
def prefect_server():
    """A temporary Prefect server and database for the whole session."""
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


@pytest.fixture
def command(project):
    """A function that runs a command in the project, with this Python first in PATH and no Prefect server."""

    def run(*arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
        variables["TERRINE_ROOT"] = str(project)
        done = subprocess.run(
            arguments,
            cwd=project,
            env=variables | environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{arguments} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done

    return run
