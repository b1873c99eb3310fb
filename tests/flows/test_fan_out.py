"""Votes have the same bytes with every runner and group size, even if a worker is killed."""

import multiprocessing
import os
import shutil
import signal
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
from distributed import Client
from prefect import flow

from benchmarks.crash.project import set_default
from flows.execution import executor
from flows.pipeline import stage_flow
from flows.runners import local_cluster
from flows.stages import run_stage, run_tasks, run_through
from tasks.artefacts.teachers import teaching_folder
from tasks.config.presets import read_preset
from tasks.config.sections import Runner
from tasks.pipeline import teach
from tasks.pipeline.graph import MAIN
from tasks.pipeline.teach import groups
from tasks.runtime.run import open_run
from tasks.runtime.step import step
from tests.conftest import REPOSITORY
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
    set_default(project, "small", read_preset(project, "small").overrides | sections)
    run_stage(project, "small", "parameters")
    return open_run(project, "small")


def run_in_a_flow(project, run, stage):
    """Run a stage of the project that TERRINE_ROOT names."""
    stage_flow(run, stage)


def votes_after(project, run_one=run_in_a_flow):
    """Teach, vote, and return the bytes of teachers and votes."""
    folders = open_run(project, "small").folders
    for folder in (folders.teachers, folders.votes, folders.root / "data" / "private" / "shared"):
        shutil.rmtree(folder, ignore_errors=True)
    run_one(project, "small", "teach")
    run_stage(project, "small", "vote")
    teachers = {file.name: file.read_bytes() for file in sorted(folders.teachers.iterdir())}
    return teachers, (folders.votes / "votes.npy").read_bytes()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A project with dataset, partition, images and backbone, and its votes without a fan-out."""
    project = make_project(tmp_path_factory.mktemp("fan-out") / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERRINE_ROOT", str(project))
        settle(project, **PRESET, teachers={"per_task": TEACHERS})
        for stage in ("dataset", "partition", "synthesize", "pretrain", "average"):
            run_stage(project, "small", stage)
        yield project, votes_after(project, run_stage)


@pytest.fixture(scope="module", autouse=True)
def _forked():
    """Worker processes are forked from one that has loaded what they need: each would import for seconds."""
    server, plain = forkserver.ForkServer(), multiprocessing.get_context
    server.set_forkserver_preload([__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPOSITORY)  # where it finds this module
        server.ensure_running()
        patch.undo()
        patch.setattr(forkserver, "connect_to_new_process", server.connect_to_new_process)
        patch.setattr(multiprocessing, "get_context", lambda method=None: plain(method and "forkserver"))
        yield
    server._stop()


@pytest.fixture(scope="module")
def cluster(prefect_server, _forked):
    """A Dask cluster of two worker processes on this machine."""
    with local_cluster(2) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "workers", "per_task"),
    [
        ("threads", 2, 7),
        ("threads", 4, 1),
        ("processes", 2, 20),
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
@pytest.mark.parametrize("kind", ["threads", "dask"])
def test_a_record_moves_one_teacher_whoever_carries_them(tmp_path, prefect_server, cluster, kind):
    world = worlds.base()
    changed = worlds.STEPS["record"]["replaced"].make(world, "record", "r211", FORM.positional, FORM.classes)
    runs = [
        settle_world(tmp_path / str(number), FORM, data, **KINDS["linear, adam"])
        for number, data in enumerate((world, changed))
    ]
    whom = {"address": cluster.scheduler_address} if kind == "dask" else {"workers": 2}

    @flow(validate_parameters=False)
    def teach_both():
        with executor(Runner(kind=kind, **whom), "cpu", fans_out=True) as execute:
            for run in runs:
                run_tasks(MAIN["teach"], run, execute)

    for run in runs:
        run_through(run, "dataset", "average")
    teach_both()
    for run in runs:
        run_through(run, "vote", "vote")
    before, after = map(outcome, runs)
    assert len(before.dealt(after)) == 1
    assert before.moved(after) == before.dealt(after)


@pytest.mark.slow
def test_votes_of_networks_are_the_same_bytes_in_blocks_spread_over_workers(prepared, cluster, monkeypatch):
    from tasks.pipeline import vote

    project, _ = prepared
    networks = {"kind": "scratch", "architecture": "small_cnn", "epochs": 1, "per_task": TEACHERS}
    run = settle(project, teachers=networks, runner={"kind": "dask", "address": cluster.scheduler_address})
    assert MAIN["vote"].fans_out(run.params)
    run_stage(project, "small", "teach")
    run_stage(project, "small", "vote")
    expected = (run.folders.votes / "votes.npy").read_bytes()
    shutil.rmtree(run.folders.votes)
    monkeypatch.setattr(vote.teacher_kind(run).__class__, "block", 7)
    assert len(vote.blocks(run)) == 4
    stage_flow("small", "vote")
    assert (run.folders.votes / "votes.npy").read_bytes() == expected


def process_ids(cluster):
    """Return the process ids of a cluster's workers."""
    with Client(cluster, set_as_default=False) as client:
        return list(client.run(os.getpid).values())


SLOW = {"optimiser": "adam", "epochs": 200, "batch": None, "per_task": 2}


@pytest.mark.slow
def test_a_killed_dask_worker_costs_nothing_that_was_on_disk(prepared, prefect_server, cluster, monkeypatch):
    project, _ = prepared
    run = settle(project, teachers=SLOW, runner={"kind": "dask", "address": cluster.scheduler_address})
    expected = votes_after(project, run_stage)
    work = teaching_folder(run)
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


@step("groups", retries=1)
def fail_or_finish(folder, number):
    """Leave a file for every attempt; number 3 fails always, number 4 kills its process, number 5 fails once."""
    attempts = len(list(Path(folder).glob(f"{number}-*")))
    (Path(folder) / f"{number}-{attempts}").touch()
    if number == 3 or (number == 5 and attempts == 0):
        raise RuntimeError(f"attempt {attempts}")
    if number == 4:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_part_that_kills_its_process_is_reported_and_the_others_finish(prefect_server, tmp_path):
    numbers = [1, 3, 4, 5]

    @flow
    def parts():
        with executor(Runner(kind="processes", workers=1), "cpu", fans_out=True) as execute:
            execute.map(fail_or_finish, [(str(tmp_path), number) for number in numbers], list(map(str, numbers)))

    # One worker at a time: 5 is always waiting behind 4 when it dies.
    with pytest.raises(RuntimeError, match=r"2 of 4 parts of 'groups' failed \(groups 3: RuntimeError") as caught:
        parts()
    assert "groups 4: its worker process was killed" in str(caught.value)
    attempts = [len(list(tmp_path.glob(f"{number}-*"))) for number in numbers]
    assert attempts[0] >= 1  # finished
    assert attempts[1] >= 2  # retried, and failed again
    assert attempts[2] == 3  # first pool, second pool, single part
    assert attempts[3] >= 2  # retried, and finished
