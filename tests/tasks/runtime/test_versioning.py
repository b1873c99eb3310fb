"""What is committed is there whole or not at all; what DVC was killed over is in nobody's way."""

import json
import logging
import os
import shutil
import subprocess

import pytest
from dvc.repo import Repo
from dvc.utils.serialize import load_yaml

from tasks.pipeline.graph import MAIN
from tasks.runtime.code import write_code
from tasks.runtime.locks import FOLDER
from tasks.runtime.parameters import write_parameters
from tasks.runtime.store import Folders
from tasks.runtime.versioning import changed_stages, commit, is_changed, select

RUN = "terrine-digits"


class Killed(BaseException):
    """Stands for a SIGKILL: nobody catches it."""


@pytest.fixture(params=[RUN, "other"])
def run(request):
    return request.param


@pytest.fixture
def project(tmp_path, pytestconfig, run, monkeypatch):
    """A project with the first stage of a run made: of the one that params.yaml names, or of another."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(pytestconfig.rootpath / name, tmp_path)
    (tmp_path / "experiments").mkdir()
    for name in (RUN, "other"):
        shutil.copy(pytestconfig.rootpath / "experiments" / f"{RUN}.yaml", tmp_path / "experiments" / f"{name}.yaml")
    shutil.copytree(pytestconfig.rootpath / ".dvc", tmp_path / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache"))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    write_code(write_parameters(tmp_path, run), MAIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lock_of(project, run):
    return project / "dvc.lock" if run == RUN else Folders(project, run).private / "dvc.lock"


def test_what_is_committed_is_what_dvc_finds_at_the_runs_door(project, run):
    select(project, run, MAIN)
    assert is_changed(project, run, "parameters", MAIN)
    commit(project, run, "parameters", MAIN)
    assert changed_stages(project, run, MAIN) == MAIN.names[1:]
    door = "dvc.yaml" if run == RUN else "selected/dvc.yaml"
    target = f"{door}:parameters@{run}"
    with Repo() as repository:
        assert repository.status(targets=[target]) == {}
    text = lock_of(project, run).read_text()
    with Repo() as repository:  # a float such as 1e-05 is a float to both
        repository.commit(target=target, force=True)
    assert lock_of(project, run).read_text() == text


def test_a_kill_at_any_moment_of_a_commit_leaves_the_entries_that_were_there(project, run, monkeypatch):
    commit(project, run, "parameters", MAIN)
    before = lock_of(project, run).read_text()

    def kill(*_, **__):
        raise Killed

    for moment in ("dvc.utils.serialize._yaml._dump", "os.fsync", "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(moment, kill)
            with pytest.raises(Killed):
                commit(project, run, "parameters", MAIN)
        assert lock_of(project, run).read_text() == before
    commit(project, run, "parameters", MAIN)


def test_a_lock_that_dvc_was_killed_over_is_begun_anew_with_a_sentence(project, run, caplog):
    commit(project, run, "parameters", MAIN)
    whole = load_yaml(lock_of(project, run))
    for left in (b"", b"schema: '2.0'\nstages:\n  parameters@", "schema: '2.0'\n# é".encode()[:-1]):
        lock_of(project, run).write_bytes(left)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert changed_stages(project, run, MAIN) == MAIN.names
        assert [record.getMessage().partition(" ")[2][:13] for record in caplog.records] == ["was cut short"]
    commit(project, run, "parameters", MAIN)
    assert load_yaml(lock_of(project, run)) == whole


def test_notes_that_a_killed_commit_left_are_in_nobodys_way(project, run):
    path = project / FOLDER / "rwlock"
    path.parent.mkdir(parents=True)
    for left in ("", json.dumps({"write": {"": {"pid": os.getpid(), "cmd": "terrine run"}}})):
        path.write_text(left)
        commit(project, run, "parameters", MAIN)
        assert not is_changed(project, run, "parameters", MAIN)


def test_what_a_power_cut_emptied_in_the_cache_is_not_put_in_the_place_of_what_a_stage_makes(project, run, monkeypatch):
    commit(project, run, "parameters", MAIN)
    made = Folders(project, run).dataset / "train.npy"
    made.parent.mkdir()
    made.write_bytes(b"images")
    cached = {path for path in (project / ".dvc" / "cache" / "files").rglob("*") if path.is_file()}
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (synced.append(os.fstat(number).st_ino), sync(number)))
    commit(project, run, "dataset", MAIN)
    kept = {path for path in (project / ".dvc" / "cache" / "files").rglob("*") if path.is_file()} - cached
    assert len(kept) == 2
    assert {path.stat().st_ino for path in (*kept, made)} <= set(synced)
    for path in (*kept, made):
        path.unlink()
        path.touch()
    assert is_changed(project, run, "dataset", MAIN)
    made.unlink()
    made.write_bytes(b"images")
    commit(project, run, "dataset", MAIN)
    assert made.read_bytes() == b"images"
    assert min(path.stat().st_size for path in kept) > 0
    assert not is_changed(project, run, "dataset", MAIN)
