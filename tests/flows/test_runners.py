"""Task runners and the devices of their workers, without a GPU; clusters that cannot be used."""

import os
import sys

import pytest

from flows.execution import Executor, executor
from flows.runners import cuda_devices, enter_worker, local_cluster, part_device, task_runner, worker_environments
from tasks.config.params import validate
from tasks.config.sections import Runner
from tasks.runtime.run import Run
from terrine.errors import SettingError
from terrine.ports import free_ports


@pytest.fixture
def devices(monkeypatch):
    """Sets how many devices there are, and which CUDA_VISIBLE_DEVICES names."""

    def set_devices(count, visible=None):
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return set_devices


@pytest.mark.parametrize(
    ("device", "count", "visible", "found"),
    [
        ("auto", 3, None, ("0", "1", "2")),
        ("cuda", 2, "", ("0", "1")),
        ("auto", 2, "5, 7", ("5", "7")),
        ("auto", 1, "GPU-8a1,GPU-9b2", ("GPU-8a1",)),
        ("cpu", 4, None, ()),
        ("mps", 4, None, ()),
        ("cuda:1", 4, None, ()),
    ],
)
def test_devices_are_those_that_this_process_may_use_unless_one_is_named(devices, device, count, visible, found):
    devices(count, visible)
    assert cuda_devices(device) == found
    if not found:
        assert part_device(device, 3) == device


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
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert seen in (["0", "1", "0"], ["1", "0", "1"])
    assert len(initialised) == 3


def test_threads_get_their_device_and_worker_processes_do_not(devices, prefect_server, tmp_path):
    from prefect import flow

    devices(2)
    run = Run(tmp_path, "small", validate({"data": {"public_benchmark": True}}))
    assert Executor().place(run, 1) == run

    @flow
    def parts(kind):
        with executor(Runner(kind=kind, workers=1), "auto", fans_out=True) as execute:
            return [execute.place(run, part).params.device for part in range(3)]

    assert parts("threads") == ["cuda:0", "cuda:1", "cuda:0"]
    assert parts("processes") == ["auto"] * 3
    assert run.params.device == "auto"


def test_runners_start_one_worker_per_device_unless_another_number_is_set(devices):
    devices(2)
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
    from distributed import Client

    with local_cluster(2, ("5", "6")) as cluster, Client(cluster, set_as_default=False) as client:
        seen = client.run(os.getenv, "CUDA_VISIBLE_DEVICES")
    assert sorted(seen.values()) == ["5", "6"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "threads", "address": "tcp://a:1"}, r"address=tcp://a:1 needs runner\.kind=dask or ray"),
        ({"kind": "dask", "address": "tcp://a:1", "workers": 2}, r"workers=2 has no meaning with runner\.address"),
        ({"kind": "slurm"}, r"runner\.kind"),
        ({"workers": 0}, r"runner\.workers"),
        ({"kind": "dask", "address": ""}, r"runner\.address"),
    ],
)
def test_impossible_runners_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        validate({"data": {"public_benchmark": True}, "runner": settings})


def test_ray_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prefect_ray", None)
    with pytest.raises(SettingError, match=r"runner\.kind=ray needs packages.*pip install 'terrine\[ray\]'"):
        task_runner(Runner(kind="ray"))


def test_a_cluster_that_cannot_be_reached_is_named(prefect_server):
    from prefect import flow

    address = f"tcp://127.0.0.1:{free_ports()[0]}"

    @flow
    def connect():
        with executor(Runner(kind="dask", address=address), "cpu", fans_out=True):
            pass

    with pytest.raises(SettingError, match=rf"runner\.address={address}: connection failed .*runner\.address=null"):
        connect()
