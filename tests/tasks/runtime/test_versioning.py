"""DVC's record of a run: where it is, what a kill of DVC leaves, and that runs do not disturb each other."""

import json
import logging
import shutil
import subprocess

import pytest
import yaml
from dvc.repo import Repo

from tasks.config.presets import named_run, selected_run
from tasks.pipeline.graph import MAIN
from tasks.runtime.parameters import write_parameters
from tasks.runtime.store import Folders, project_leftovers, remove_leftovers
from tasks.runtime.versioning import changed_stages, commit, is_changed, lock_digest, pipeline_file, select
from tasks.transcription.graph import TRANSCRIPTION

RUN = "terrine-digits"


@pytest.fixture(params=[RUN, "other"])
def run(request):
    return request.param


@pytest.fixture
def project(tmp_path, pytestconfig, monkeypatch):
    """A project of two runs: the default one, and another."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(pytestconfig.rootpath / name, tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "other.yaml").write_text("queries: {count: 100}\npartition: {teachers: 3}\n")
    shutil.copytree(pytestconfig.rootpath / ".dvc", tmp_path / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache"))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def begun(project, run):
    """The project with the first stage of a run made."""
    write_parameters(project, run)
    assert changed_stages(project, run, MAIN) == MAIN.names
    commit(project, run, "parameters", MAIN)
    return project


def lock_of(project, run):
    return pipeline_file(project, run, MAIN).with_name("dvc.lock")


def test_the_default_run_is_recorded_at_the_top_and_others_in_folders_that_git_ignores(project):
    assert lock_of(project, RUN) == project / "dvc.lock"
    for name, pipeline in (("other", MAIN), (RUN, TRANSCRIPTION)):
        path = pipeline_file(project, name, pipeline)
        assert path == project / "runs" / name / "dvc.yaml"
        select(project, name, pipeline)
        assert list(yaml.safe_load(path.read_text())["stages"]) == pipeline.names
    status = subprocess.run(["git", "status", "--porcelain", "-uall"], capture_output=True, text=True, check=True)
    assert "runs/" not in status.stdout
    assert (project / "runs").stat().st_mode & 0o077 == 0


def test_dvc_finds_what_was_committed_and_commits_the_same(begun, run):
    assert changed_stages(begun, run, MAIN) == MAIN.names[1:]
    text = lock_of(begun, run).read_text()
    (begun / "runs").mkdir(exist_ok=True)
    with open(begun / "runs" / ".gitignore", "a") as ignored:
        ignored.write("!/other/\n")  # as docs/dvc.md says, for DVC's own commands
    target = f"{pipeline_file(begun, run, MAIN)}:parameters"
    with Repo() as repository:
        assert repository.status(targets=[target]) == {}
        repository.commit(target=target, force=True)
    assert lock_of(begun, run).read_text() == text


@pytest.mark.parametrize(
    "left",
    [
        b"schema: '2.0'\nstages:\n  parameters",
        b"schema: '2.0'\nstages:\n  parameters:\n    outs: [{path",
        b"- 1\n",
        b"\xc3",
    ],
)
def test_a_lock_that_dvc_was_killed_over_is_set_aside_with_a_sentence(begun, run, caplog, left):
    whole = yaml.safe_load(lock_of(begun, run).read_text())
    lock_of(begun, run).write_bytes(left)
    with caplog.at_level(logging.WARNING):
        assert changed_stages(begun, run, MAIN) == MAIN.names
        commit(begun, run, "parameters", MAIN)
        commit(begun, run, "parameters", MAIN)
        assert changed_stages(begun, run, MAIN) == MAIN.names[1:]
        lock_of(begun, run).write_bytes(left)
        caplog.clear()
        assert changed_stages(begun, run, MAIN) == MAIN.names[1:], "the entries before the last commit are there"
    assert [record.getMessage().partition(" ")[2][:13] for record in caplog.records] == ["was cut short"]
    commit(begun, run, "parameters", MAIN)
    assert yaml.safe_load(lock_of(begun, run).read_text()) == whole


def test_a_lock_of_which_the_end_is_missing_makes_stages_run_again(begun, run):
    text = lock_of(begun, run).read_text()
    for end in range(0, len(text), 170):
        lock_of(begun, run).write_text(text[:end])
        assert set(changed_stages(begun, run, MAIN)) >= set(MAIN.names[1:])
    commit(begun, run, "parameters", MAIN)
    assert lock_of(begun, run).read_text() == text


def test_notes_that_a_killed_commit_left_do_not_stop_a_run(begun, run):
    path = begun / ".dvc" / "tmp" / "rwlock"
    dead = {"write": {str(begun): {"pid": 2**22 + 1, "cmd": "terrine run"}}}
    for left in ("", '{"write": ', json.dumps(dead)):
        path.write_text(left)
        commit(begun, run, "parameters", MAIN)
        assert not is_changed(begun, run, "parameters", MAIN)


def test_what_a_power_cut_emptied_in_the_cache_is_not_put_in_the_place_of_what_a_stage_makes(begun, run):
    made = Folders(begun, run).dataset / "train.npy"
    made.parent.mkdir()
    made.write_bytes(b"images")
    cached = {path for path in (begun / ".dvc" / "cache" / "files").rglob("*") if path.is_file()}
    commit(begun, run, "dataset", MAIN)
    kept = {path for path in (begun / ".dvc" / "cache" / "files").rglob("*") if path.is_file()} - cached
    assert len(kept) == 2
    assert made.stat().st_ino in {path.stat().st_ino for path in kept}, "what a stage has synced is not copied"
    for path in (*kept, made):
        path.unlink()
        path.touch()
    assert is_changed(begun, run, "dataset", MAIN)
    made.unlink()
    made.write_bytes(b"images")
    remove_leftovers(project_leftovers(begun))
    commit(begun, run, "dataset", MAIN)
    assert made.read_bytes() == b"images"
    assert not is_changed(begun, run, "dataset", MAIN)


def test_parameters_of_a_run_are_what_dvc_compares(project):
    for name in (RUN, "other"):
        write_parameters(project, name)
        assert changed_stages(project, name, MAIN) == MAIN.names
        for stage, artefact in (("parameters", None), ("dataset", "private/dataset")):
            if artefact:
                folder = Folders(project, name).private / "dataset"
                folder.mkdir()
                (folder / "manifest.json").write_text("{}")
            commit(project, name, stage, MAIN)
        assert changed_stages(project, name, MAIN) == MAIN.names[2:]
    for path, name in ((project / "params.yaml", RUN), (project / "experiments" / "other.yaml", "other")):
        path.write_text(path.read_text().replace("count: 8000", "count: 70").replace("count: 100", "count: 70"))
        assert changed_stages(project, name, MAIN) == ["parameters", *MAIN.names[2:]]
        path.write_text(path.read_text().replace("seed: 0", "seed: 1") + ("seed: 1\n" if name == "other" else ""))
        assert changed_stages(project, name, MAIN) == MAIN.names


def test_a_run_that_is_selected_changes_no_file_of_the_project(project):
    before = {path.name: path.read_text() for path in project.iterdir() if path.is_file()}
    assert selected_run(project) == RUN
    select(project, "other", MAIN)
    assert (selected_run(project), named_run(project)) == ("other", RUN)
    assert changed_stages(project, RUN, MAIN) == MAIN.names
    assert selected_run(project) == "other", "to ask about a run selects nothing"
    assert {path.name: path.read_text() for path in project.iterdir() if path.is_file()} == before
    (project / "params.yaml").write_text("run: third\n")
    assert selected_run(project) == "third", "a run named in params.yaml later is meant instead"
    (project / "params.yaml").write_text(before["params.yaml"])
    select(project, RUN, MAIN)
    assert selected_run(project) == RUN


def test_the_digest_of_entries_is_of_the_run_and_without_its_report(begun, run):
    first = lock_digest(begun, run)
    assert first != "none"
    assert lock_digest(begun, "third") == "none"
    content = yaml.safe_load(lock_of(begun, run).read_text())
    content["stages"]["report"] = content["stages"]["parameters"]
    lock_of(begun, run).write_text(yaml.safe_dump(content))
    assert lock_digest(begun, run) == first
    content["stages"]["parameters"] = {"cmd": "other"}
    lock_of(begun, run).write_text(yaml.safe_dump(content))
    assert lock_digest(begun, run) != first
