"""Folders of libraries: below the user's home, or below the project if the home is missing."""

import os
from pathlib import Path

import pytest
import yaml

from flows.environment import DEFAULTS, prepare_environment
from tests.conftest import REPOSITORY


@pytest.fixture(autouse=True)
def in_a_project(tmp_path, monkeypatch):
    """A project, and an environment that is put back."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in ("TERRINE_ROOT", "DVC_SITE_CACHE_DIR", "USER"):
        os.environ.pop(name, None)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("home", ["/no/such/home", "/proc/1/no", "relative/and/missing"])
def test_who_has_no_home_has_one_in_the_project_and_a_name(tmp_path, home):
    os.environ["HOME"] = home
    prepare_environment()
    assert Path.home() == tmp_path / ".home"
    assert Path(os.environ["DVC_SITE_CACHE_DIR"]).is_relative_to(tmp_path)
    assert str(os.getuid()) in os.environ["USER"]
    assert Path.home().stat().st_mode & 0o777 == 0o700


def test_a_home_that_can_be_written_to_stays(tmp_path):
    os.environ["HOME"] = str(tmp_path)
    prepare_environment()
    assert os.environ["HOME"] == str(tmp_path)
    assert "DVC_SITE_CACHE_DIR" not in os.environ


def test_runs_of_every_deployment_have_the_variables_for_logs_and_without_telemetry():
    text = (REPOSITORY / "prefect.yaml").read_text()
    for deployment in yaml.safe_load(text)["deployments"]:
        variables = deployment["work_pool"]["job_variables"]["env"]
        assert variables.keys() >= {"MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "PREFECT_LOGGING_EXTRA_LOGGERS"}
        assert variables.items() <= DEFAULTS.items()
