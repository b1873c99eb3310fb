"""Devices are dealt to workers and parts without a GPU being there."""

import pytest

from flows.execution import InFlow, InProcess
from flows.placement import (
    cuda_devices,
    device_of_part,
    enter_worker,
    number_of_workers,
    visible_devices,
    worker_environments,
)
from flows.runners import task_runner
from tasks.config.params import validate
from tasks.config.sections import Runner
from tasks.runtime.run import Run


@pytest.fixture
def two_devices(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_every_device_is_dealt_when_none_is_named():
    assert visible_devices("auto", 3, None) == ("0", "1", "2")
    assert visible_devices("cuda", 2, "") == ("0", "1")


def test_devices_that_this_process_may_not_use_are_not_dealt():
    assert visible_devices("auto", 2, "5, 7") == ("5", "7")
    assert visible_devices("auto", 1, "GPU-8a1,GPU-9b2") == ("GPU-8a1",)


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda:1"])
def test_a_device_that_is_named_is_used_as_it_is(device):
    assert visible_devices(device, 4, None) == ()
    assert cuda_devices(device) == ()
    assert device_of_part(device, 3, 4) == device


def test_one_worker_per_device_unless_another_number_is_asked_for():
    assert number_of_workers(None, ("0", "1"), 64) == 2
    assert number_of_workers(None, (), 64) == 64
    assert number_of_workers(5, ("0", "1"), 64) == 5


def test_every_worker_sees_one_device_and_its_share_of_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert worker_environments(3, ("4", "6"), 8) == [
        {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "4"},
        {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "6"},
        {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "4"},
    ]
    assert worker_environments(4, (), 2) == [{"OMP_NUM_THREADS": "1"}] * 4
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert worker_environments(1, ("0",), 8) == [{"CUDA_VISIBLE_DEVICES": "0"}]


def test_workers_of_a_pool_take_successive_environments(monkeypatch):
    monkeypatch.setattr("torch.cuda.init", lambda: initialised.append(True))
    initialised, seen = [], []
    environments = worker_environments(2, ("0", "1"), 2)
    for name in ("SpawnProcess-3", "SpawnProcess-4", "SpawnProcess-5"):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr("multiprocessing.current_process", lambda name=name: type("P", (), {"name": name}))
        enter_worker(environments)
        import os

        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert seen in (["0", "1", "0"], ["1", "0", "1"])
    assert len(initialised) == 3


def test_parts_go_round_the_devices_where_they_share_a_process():
    assert [device_of_part("auto", part, 3) for part in range(5)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1"]
    assert device_of_part("auto", 4, 1) == "auto"
    assert device_of_part("cuda", 4, 0) == "cuda"


def test_threads_are_handed_their_device_and_worker_processes_are_not(two_devices, prefect_server, tmp_path):
    from prefect import flow

    run = Run(tmp_path, "small", validate({"data": {"public_benchmark": True}}))
    assert InProcess().place(run, 1) == run
    placed = {}
    for kind in ("threads", "processes"):

        @flow(task_runner=task_runner(Runner(kind=kind, workers=1)))
        def parts(kind=kind):
            placed[kind] = [InFlow().place(run, part).params.device for part in range(3)]

        parts()
    assert placed == {"threads": ["cuda:0", "cuda:1", "cuda:0"], "processes": ["auto"] * 3}
    assert run.params.device == "auto"


def test_runners_start_one_worker_per_device(two_devices):
    threads = task_runner(Runner(kind="threads"), "auto")
    assert threads._max_workers == 2
    processes = task_runner(Runner(kind="processes"), "cuda")
    (environments,) = processes._initargs
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment in environments] == ["0", "1"]
    dask = task_runner(Runner(kind="dask"), "auto")
    assert dask.cluster_kwargs == {"workers": 2, "devices": ("0", "1")}
    assert task_runner(Runner(kind="dask", workers=3), "cpu").cluster_kwargs == {"workers": 3, "devices": ()}


@pytest.mark.slow
def test_workers_of_a_dask_cluster_see_their_own_device():
    import os

    from distributed import Client

    from flows.runners import local_cluster

    with local_cluster(2, ("5", "6")) as cluster, Client(cluster, set_as_default=False) as client:
        seen = client.run(os.getenv, "CUDA_VISIBLE_DEVICES")
    assert sorted(seen.values()) == ["5", "6"]
