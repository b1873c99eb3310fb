"""Which run commands mean, and in which pipeline file DVC finds it."""

import shutil

import pytest
import yaml

from tasks.config.presets import named_run, selected_run
from tasks.pipeline.graph import MAIN
from tasks.runtime.versioning import lock_digest, select
from tasks.transcription.graph import TRANSCRIPTION


@pytest.fixture
def project(tmp_path, pytestconfig):
    shutil.copy(pytestconfig.rootpath / "dvc.yaml", tmp_path)
    name_run(tmp_path, "first")
    return tmp_path


def name_run(root, name):
    (root / "params.yaml").write_text(f"run: {name}\n")


def write_lock(folder, *runs):
    folder.mkdir(exist_ok=True)
    stages = {f"{stage}@{run}": {"cmd": run} for run in runs for stage in ("teach", "report")}
    (folder / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))


def locked(folder):
    return {name.split("@")[1] for name in yaml.safe_load((folder / "dvc.lock").read_text())["stages"]}


def test_a_run_that_is_selected_changes_no_file_of_the_project(project):
    before = {path.name: path.read_text() for path in project.iterdir()}
    assert selected_run(project) == "first"
    assert select(project, "second", MAIN) == project / "selected"
    assert (selected_run(project), named_run(project)) == ("second", "first")
    content = yaml.safe_load((project / "selected" / "dvc.yaml").read_text())
    assert list(content["stages"]) == MAIN.names
    select(project, "third", TRANSCRIPTION)
    assert selected_run(project) == "third"
    assert {path.name: path.read_text() for path in project.glob("*.yaml")} == before
    assert select(project, "first", MAIN) == project
    assert selected_run(project) == "first"


def test_a_run_named_in_params_yaml_later_is_meant_instead_of_the_selected_one(project):
    select(project, "second", MAIN)
    name_run(project, "third")
    assert selected_run(project) == "third"


def test_a_transcription_has_a_file_of_its_own_even_if_params_yaml_names_it(project):
    assert select(project, "first", TRANSCRIPTION) == project / "selected"


def test_a_run_takes_its_entries_along_when_params_yaml_names_it_and_when_it_no_longer_does(project):
    write_lock(project, "first")
    write_lock(project / "selected", "second", "third")
    before = lock_digest(project, "second")
    assert before != "none" == lock_digest(project, "fourth")
    name_run(project, "second")
    select(project, "second", MAIN)
    assert locked(project) == {"first", "second"}
    assert locked(project / "selected") == {"third"}
    assert lock_digest(project, "second") == before
    select(project, "first", MAIN)
    assert locked(project) == {"second"}
    assert locked(project / "selected") == {"first", "third"}
