"""Whoever trains the teachers, in parts of whatever size: the same bytes of votes. Also when a worker is killed."""

import os
import shutil
import signal
import threading
import time

import pytest
import yaml
from distributed import Client
from prefect import flow

from flows.execution import executor
from flows.pipeline import run_stage_as_flow
from flows.runners import local_cluster, task_runner
from flows.stages import carry_out, run_stage, run_through
from tasks.config.runner import Runner
from tasks.pipeline import teach
from tasks.pipeline.graph import MAIN
from tasks.pipeline.teach import groups, work_folder
from tasks.runtime.run import open_run
from tests.flows.conftest import make_project
from tests.neighbours import worlds
from tests.neighbours.formats import FORMATS
from tests.neighbours.kinds import KINDS
from tests.neighbours.runs import outcome
from tests.neighbours.runs import settle as settle_world

FORM = FORMATS["npz with ids"]
TEACHERS = 24
PRESET = {
    "data": {"size": 8, "test_fraction": 0.6},
    "partition": {"teachers": TEACHERS},
    "queries": {"count": 40, "batch": 20, "sources": {"gaussian": 1}},
    "backbone": {"projection": 40},
}


def settle(project, **sections):
    """Write the preset and the parameters of the run."""
    path = project / "experiments" / "small.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | sections))
    run_stage(project, "small", "parameters")
    return open_run(project, "small")


def votes_after(project, door=run_stage_as_flow):
    """Teach through a door, vote, and return the bytes of teachers and votes."""
    folders = open_run(project, "small").folders
    for folder in (folders.teachers, folders.votes):
        shutil.rmtree(folder, ignore_errors=True)
    door(project, "small", "teach")
    run_stage(project, "small", "vote")
    teachers = {file.name: file.read_bytes() for file in sorted(folders.teachers.iterdir())}
    return teachers, (folders.votes / "votes.npy").read_bytes()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A project whose dataset, partition, images and backbone are made, and its votes when nobody fans out."""
    project = make_project(tmp_path_factory.mktemp("fan-out") / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERRINE_ROOT", str(project))
        settle(project, **PRESET, teachers={"per_task": TEACHERS})
        for stage in ("dataset", "partition", "synthesize", "pretrain"):
            run_stage(project, "small", stage)
        yield project, votes_after(project, run_stage)


@pytest.fixture(scope="module")
def cluster(prefect_server):
    """A Dask cluster of two worker processes on this machine."""
    with local_cluster(2) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "workers", "per_task"),
    [
        ("threads", 1, 20),
        ("threads", 2, 7),
        ("threads", 4, 1),
        ("processes", 2, 7),
    ],
)
def test_votes_are_the_same_bytes_whoever_trains_and_in_parts_of_any_size(
    prepared, prefect_server, kind, workers, per_task
):
    project, expected = prepared
    run = settle(project, teachers={"per_task": per_task}, runner={"kind": kind, "workers": workers})
    assert len(groups(run)) == -(-TEACHERS // per_task)
    assert votes_after(project) == expected


@pytest.mark.slow
def test_votes_are_the_same_bytes_from_a_dask_cluster(prepared, prefect_server, cluster):
    project, expected = prepared
    runner = {"kind": "dask", "address": cluster.scheduler_address}
    assert len(cluster.scheduler_info["workers"]) == 2
    run = settle(project, teachers={"per_task": 7}, runner=runner)
    assert len(groups(run)) == 4
    assert votes_after(project) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "dask"])
def test_a_record_moves_one_teacher_whoever_carries_them(tmp_path, prefect_server, cluster, kind):
    world = worlds.base()
    changed = worlds.STEPS["record"]["replaced"].make(world, "record", "r211", FORM.positional, FORM.classes)
    runs = [
        settle_world(tmp_path / str(number), FORM, data, **KINDS["linear, adam"])
        for number, data in enumerate((world, changed))
    ]
    whom = {"address": cluster.scheduler_address} if kind == "dask" else {"workers": 2}

    @flow(task_runner=task_runner(Runner(kind=kind, **whom)), validate_parameters=False)
    def teach_both():
        for run in runs:
            carry_out(MAIN["teach"], run, executor())

    for run in runs:
        run_through(run, "dataset", "average")
    teach_both()
    for run in runs:
        run_through(run, "vote", "vote")
    before, after = map(outcome, runs)
    assert len(before.dealt(after)) == 1
    assert before.moved(after) == before.dealt(after)


@pytest.mark.slow
def test_votes_of_networks_are_the_same_bytes_in_blocks_spread_over_processes(prepared, prefect_server, monkeypatch):
    from tasks.pipeline import vote

    project, _ = prepared
    networks = {"kind": "scratch", "architecture": "small_cnn", "epochs": 1, "per_task": TEACHERS}
    run = settle(project, teachers=networks, runner={"kind": "processes", "workers": 2})
    assert MAIN["vote"].fans_out(run.params)
    run_stage(project, "small", "teach")
    run_stage(project, "small", "vote")
    expected = (run.folders.votes / "votes.npy").read_bytes()
    shutil.rmtree(run.folders.votes)
    monkeypatch.setattr(vote.teacher_kind(run).__class__, "block", 7)
    assert len(vote.blocks(run)) == 4
    run_stage_as_flow(project, "small", "vote")
    assert (run.folders.votes / "votes.npy").read_bytes() == expected


def process_ids(cluster):
    """Return the process ids of a cluster's workers."""
    with Client(cluster, set_as_default=False) as client:
        return list(client.run(os.getpid).values())


SLOW = {"optimiser": "adam", "epochs": 1000, "batch": None, "per_task": 2}


@pytest.mark.slow
def test_a_killed_dask_worker_costs_nothing_that_was_on_disk(prepared, prefect_server, cluster, monkeypatch):
    project, _ = prepared
    run = settle(project, teachers=SLOW, runner={"kind": "dask", "address": cluster.scheduler_address})
    expected = votes_after(project, run_stage)
    work = work_folder(run)
    workers = process_ids(cluster)
    at_the_kill, at_the_end, killed = {}, {}, []

    def finished():
        return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in work.glob("group-*.safetensors")}

    def kill_when_some_are_finished():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and len(finished()) < 3:
            time.sleep(0.005)
        at_the_kill.update(finished())
        os.kill(workers[0], signal.SIGKILL)
        killed.append(workers[0])

    plain = teach.collect_teachers

    def collect(run):
        at_the_end.update(finished())
        plain(run)

    monkeypatch.setattr(teach, "collect_teachers", collect)
    killer = threading.Thread(target=kill_when_some_are_finished)
    killer.start()
    found = votes_after(project)
    killer.join()
    assert len(killed) == 1
    assert 3 <= len(at_the_kill) < len(groups(run))
    assert len(at_the_end) == len(groups(run))
    assert {name: at_the_end[name] for name in at_the_kill} == at_the_kill
    assert killed[0] not in process_ids(cluster)
    assert found == expected
