"""Runs share artefacts made from the same inputs, code and account."""

import shutil

import numpy as np
import pytest

from tasks.config.presets import derive
from tasks.pipeline.graph import MAIN
from tasks.runtime import reuse
from tasks.runtime.parameters import write_parameters
from tasks.runtime.reuse import kept_folder, reuse_outputs, share_outputs
from tasks.runtime.store import read_array, write_array

PRESET = "terrine-digits"
BEFORE = ("dataset", "partition", "average", "backbone")
TEACH = MAIN["teach"]


def share(run, stage):
    share_outputs(run, stage, kept_folder(run, stage))


def reused(run, stage):
    return reuse_outputs(run, stage, kept_folder(run, stage))


@pytest.fixture
def project(tmp_path, pytestconfig):
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(pytestconfig.rootpath / name, tmp_path)
    (tmp_path / "experiments").mkdir()
    first = begun(tmp_path)
    write_array(first.folders.teachers / "heads.npy", np.array([7]))
    share(first, TEACH)
    return tmp_path


def begun(root, *overrides):
    """A run with everything that the stage `teach` needs."""
    run = write_parameters(root, derive(root, PRESET, list(overrides)))
    for number, name in enumerate(BEFORE):
        write_array(getattr(run.folders, name) / "array.npy", np.array([number]))
    return run


def test_teachers_that_another_run_made_of_the_same_are_the_same_files(project):
    other = begun(project, "aggregation.sigma=31")
    assert reused(other, TEACH)
    assert read_array(other.folders.teachers / "heads.npy") == [7]
    assert (other.folders.teachers / "heads.npy").stat().st_nlink == 3


def test_a_release_is_taken_from_no_run(project):
    for stage in MAIN.stages:
        assert not stage.shared or all(name.startswith("private/") for name in stage.makes.split())
    assert not MAIN["aggregate"].shared
    share(begun(project), MAIN["aggregate"])
    assert not reused(begun(project), MAIN["aggregate"])


@pytest.mark.parametrize("overrides", [["teachers.ridge=3"], ["seed=1"], ["data.edition=2"], ["ledger.account=other"]])
def test_other_settings_data_or_accounts_share_nothing(project, overrides):
    assert not reused(begun(project, *overrides), TEACH)


@pytest.mark.parametrize("name", BEFORE)
def test_other_contents_share_nothing(project, name):
    other = begun(project, "aggregation.sigma=31")
    write_array(getattr(other.folders, name) / "array.npy", np.array([99]))
    assert not reused(other, TEACH)


def test_other_code_shares_nothing(project, monkeypatch):
    monkeypatch.setattr(reuse, "code_digest", lambda *_: "other")
    assert not reused(begun(project, "aggregation.sigma=31"), TEACH)


def test_what_was_changed_through_a_link_since_is_given_to_no_run_and_made_again(project):
    first, other = begun(project), begun(project, "aggregation.sigma=31")
    with open(first.folders.teachers / "heads.npy", "ab") as file:
        file.write(b"damaged")
    assert not reused(other, TEACH)
    write_array(other.folders.teachers / "heads.npy", np.array([7]))
    share(other, TEACH)
    assert reused(first, TEACH)
    assert read_array(first.folders.teachers / "heads.npy") == [7]
