"""What one run made is another's where it was made of the same, by the same code, on the same account."""

import shutil
import subprocess

import numpy as np
import pytest

from tasks.config.presets import derive
from tasks.pipeline.graph import MAIN
from tasks.runtime.code import write_code
from tasks.runtime.parameters import write_parameters
from tasks.runtime.sharing import take_over
from tasks.runtime.store import Folders, read_array, read_json, write_array, write_json
from tasks.runtime.versioning import commit, is_changed

PRESET = "terrine-digits"
BEFORE = ("dataset", "partition", "average", "backbone")


@pytest.fixture
def project(tmp_path, pytestconfig, monkeypatch):
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(pytestconfig.rootpath / name, tmp_path)
    (tmp_path / "experiments").mkdir()
    shutil.copy(pytestconfig.rootpath / "experiments" / f"{PRESET}.yaml", tmp_path / "experiments")
    shutil.copytree(pytestconfig.rootpath / ".dvc", tmp_path / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache"))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    folders = begun(tmp_path)
    write_array(folders.teachers / "heads.npy", np.array([7]))
    for stage in ("average", "teach"):
        commit(tmp_path, PRESET, stage, MAIN)
    return tmp_path


def begun(root, *overrides):
    """A run with everything that the stage `teach` needs."""
    run = derive(root, PRESET, list(overrides))
    write_code(write_parameters(root, run), MAIN)
    folders = Folders(root, run)
    for number, name in enumerate(BEFORE):
        write_array(getattr(folders, name) / "array.npy", np.array([number]))
    return folders


def taken(folders, stage="teach"):
    return take_over(folders.root, folders.run, stage, MAIN)


def test_teachers_that_another_run_made_of_the_same_are_the_same_files(project):
    other = begun(project, "aggregation.sigma=31")
    assert is_changed(project, other.run, "teach", MAIN)
    assert taken(other, "average") == PRESET
    assert taken(other) == PRESET
    assert read_array(other.teachers / "heads.npy") == [7]
    commit(project, other.run, "teach", MAIN)
    assert not is_changed(project, other.run, "teach", MAIN)
    third = begun(project, "aggregation.sigma=32")
    assert taken(third) in {PRESET, other.run}


def test_a_release_is_taken_from_nobody(project):
    other = begun(project, "student.l2=0.1")
    for folders in (Folders(project, PRESET), other):
        for name in ("votes", "teachers", "images"):
            write_array(getattr(folders, name) / "array.npy", np.array([1]))
    first = Folders(project, PRESET)
    write_array(first.answers / "array.npy", np.array([1]))
    write_array(first.accounting / "array.npy", np.array([1]))
    write_json(first.statement, {})
    (first.release / "statement.html").write_text("")
    commit(project, PRESET, "aggregate", MAIN)
    assert taken(other, "aggregate") is None


@pytest.mark.parametrize("overrides", [["teachers.ridge=3"], ["seed=1"], ["data.edition=2"], ["ledger.account=other"]])
def test_other_settings_data_or_accounts_share_nothing(project, overrides):
    assert taken(begun(project, *overrides)) is None


@pytest.mark.parametrize("name", BEFORE)
def test_other_contents_share_nothing(project, name):
    other = begun(project, "aggregation.sigma=31")
    write_array(getattr(other, name) / "array.npy", np.array([99]))
    assert taken(other) is None


def test_other_code_shares_nothing(project):
    other = begun(project, "aggregation.sigma=31")
    code = read_json(other.private / "code.json")
    write_json(other.private / "code.json", code | {"teach": "changed"})
    assert taken(other) is None


def test_what_was_changed_or_removed_since_is_given_to_nobody(project):
    other, first = begun(project, "aggregation.sigma=31"), Folders(project, PRESET)
    write_array(first.teachers / "heads.npy", np.array([8]))
    assert taken(other) is None
    shutil.rmtree(first.teachers)
    assert taken(other) is None
    first.private.joinpath("dvc.lock").write_text("stages: [teach@")
    assert taken(other) is None
