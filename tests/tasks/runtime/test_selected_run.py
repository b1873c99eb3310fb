"""Which run commands mean, in which pipeline file DVC finds it, and where its entries are kept."""

import shutil
import subprocess

import pytest
import yaml

from tasks.config.presets import named_run, selected_run
from tasks.pipeline.graph import MAIN
from tasks.runtime.store import Folders
from tasks.runtime.versioning import changed_stages, lock_digest, select
from tasks.transcription.graph import TRANSCRIPTION


@pytest.fixture
def project(tmp_path, pytestconfig):
    shutil.copy(pytestconfig.rootpath / "dvc.yaml", tmp_path)
    shutil.copytree(pytestconfig.rootpath / ".dvc", tmp_path / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache"))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    name_run(tmp_path, "first")
    return tmp_path


def name_run(root, name):
    (root / "params.yaml").write_text(f"run: {name}\n")


def write_lock(path, *runs):
    path.parent.mkdir(exist_ok=True, parents=True)
    stages = {f"{stage}@{run}": {"cmd": run} for run in runs for stage in ("teach", "report")}
    path.write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))


def locked(path):
    return {name.split("@")[1] for name in yaml.safe_load(path.read_text())["stages"]}


def test_a_run_that_is_selected_changes_no_file_of_the_project(project):
    before = {path.name: path.read_text() for path in project.iterdir() if path.is_file()}
    assert selected_run(project) == "first"
    select(project, "second", MAIN)
    assert (selected_run(project), named_run(project)) == ("second", "first")
    content = yaml.safe_load((project / "selected" / "dvc.yaml").read_text())
    assert list(content["stages"]) == MAIN.names
    select(project, "third", TRANSCRIPTION)
    assert selected_run(project) == "third"
    assert {path.name: path.read_text() for path in project.glob("*.yaml")} == before
    select(project, "first", MAIN)
    assert selected_run(project) == "first"
    assert not list((project / "selected").iterdir())


def test_a_run_named_in_params_yaml_later_is_meant_instead_of_the_selected_one(project):
    select(project, "second", MAIN)
    name_run(project, "third")
    assert selected_run(project) == "third"


def test_a_transcription_has_a_file_of_its_own_even_if_params_yaml_names_it(project):
    select(project, "first", TRANSCRIPTION)
    assert (project / "selected" / "dvc.yaml").is_file()


def test_dvc_finds_the_entries_of_the_selected_run_behind_a_link_and_no_others(project):
    own = {name: Folders(project, name).private / "dvc.lock" for name in ("second", "third")}
    for name, path in own.items():
        write_lock(path, name)
        select(project, name, MAIN)
        assert (project / "selected" / "dvc.lock").resolve() == path
    assert {name: locked(path) for name, path in own.items()} == {"second": {"second"}, "third": {"third"}}


def test_to_ask_about_a_run_selects_nothing(project):
    select(project, "second", MAIN)
    assert changed_stages(project, "third", MAIN) == MAIN.names
    assert changed_stages(project, "first", MAIN) == MAIN.names
    assert selected_run(project) == "second"


def test_a_run_takes_its_entries_along_when_params_yaml_names_it_and_when_it_no_longer_does(project):
    own = Folders(project, "second").private / "dvc.lock"
    write_lock(project / "dvc.lock", "first")
    write_lock(own, "second")
    before = lock_digest(project, "second")
    assert before != "none" == lock_digest(project, "fourth")
    name_run(project, "second")
    changed_stages(project, "second", MAIN)
    assert locked(project / "dvc.lock") == {"first", "second"}
    assert locked(own) == set()
    assert lock_digest(project, "second") == before
    changed_stages(project, "first", MAIN)
    assert locked(project / "dvc.lock") == {"second"}
    assert locked(Folders(project, "first").private / "dvc.lock") == {"first"}
