"""Prefect task runners: threads, processes, Dask or Ray, with one part of a fan-out per CUDA device.

Task arguments stay small: a run is its parameters and a path, and artefacts are read and written on disk. Every worker
must therefore have the project's folder under the same path.

Each worker process gets one device through CUDA_VISIBLE_DEVICES, so a task that asks for `cuda` gets the device of its
worker. Threads share a process, so parts are assigned to devices by part number. Ray assigns devices itself.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from tasks.config.sections import Runner
from terrine.errors import SettingError

CORES = os.cpu_count() or 1
ANY_DEVICE = ("auto", "cuda")
"""Values of the setting `device` that do not name a particular device."""


def task_runner(settings: Runner, device: str = "cpu") -> TaskRunner[Any]:
    """Return the task runner for the settings `runner` and `device`.

    Raises:
        SettingError: If the package of the task runner is not installed.
    """
    devices = cuda_devices(device)
    workers = settings.workers or len(devices) or CORES
    if settings.kind == "threads":
        return ThreadPoolTaskRunner(max_workers=workers)
    if settings.kind == "processes":
        environments = worker_environments(workers, devices, CORES)
        return ProcessPoolTaskRunner(max_workers=workers, initializer=enter_worker, initargs=(environments,))
    if settings.kind == "dask":
        from prefect_dask import DaskTaskRunner

        if settings.address is not None:
            return DaskTaskRunner(address=settings.address, client_kwargs={"timeout": "20s"})
        return DaskTaskRunner(cluster_class=local_cluster, cluster_kwargs={"workers": workers, "devices": devices})
    try:
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise SettingError(
            f"runner.kind=ray needs packages that are not installed ({error}). Install them with "
            "`pip install 'terrine[ray]'`, or use runner.kind=dask, which needs nothing else."
        ) from error
    if settings.address is not None:
        return RayTaskRunner(address=settings.address)
    return RayTaskRunner(
        init_kwargs={"num_cpus": workers, "num_gpus": len(devices), "include_dashboard": False, "log_to_driver": False}
    )


def local_cluster(workers: int, devices: Sequence[str] = ()) -> Any:
    """Start a Dask cluster of single-threaded worker processes on this machine, with one device each if there are any.

    Unlike Dask's LocalCluster, it gives each worker its own environment. A worker that dies is replaced, and its task
    runs again on another worker.
    """
    from distributed import Nanny, Scheduler, SpecCluster

    common = {"nthreads": 1, "host": "127.0.0.1", "memory_limit": 1 / workers, "dashboard": False}
    environments = worker_environments(workers, devices, CORES)
    return SpecCluster(
        scheduler={"cls": Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard": False}},
        workers={
            number: {"cls": Nanny, "options": {**common, "env": environment}}
            for number, environment in enumerate(environments)
        },
    )


@contextmanager
def device_per_task(settings: Runner, device: str) -> Iterator[None]:
    """Have Ray assign a separate device to each task submitted within the block.

    This applies if this machine has devices, and always with device=cuda. Ray hides devices from tasks that do not
    request any. Other task runners need no change.
    """
    if settings.kind != "ray" or (device != "cuda" and not cuda_devices(device)):
        yield
        return
    from prefect_ray.context import remote_options

    with remote_options(num_gpus=1):
        yield


def cuda_devices(device: str = "auto") -> tuple[str, ...]:
    """Return the CUDA devices that this process may use, in the notation of CUDA_VISIBLE_DEVICES.

    The result is empty if `device` names a device (`cpu`, `cuda:1`), which is then used.
    """
    if device not in ANY_DEVICE:
        return ()
    import torch

    count, inherited = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if not inherited:
        return tuple(map(str, range(count)))
    return tuple(entry.strip() for entry in inherited.split(","))[:count]


def worker_environments(workers: int, devices: Sequence[str], cores: int) -> list[dict[str, str]]:
    """Return the environment variables of each worker process: its share of the cores, and its device.

    Worker k gets device k, starting over if there are more workers than devices. OMP_NUM_THREADS is not changed if the
    user has set it.
    """
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, cores // workers))}
    placed = [{"CUDA_VISIBLE_DEVICES": devices[worker % len(devices)]} if devices else {} for worker in range(workers)]
    return [threads | own for own in placed]


def part_device(device: str, part: int) -> str:
    """Return the device of part `part` if all parts share one process; parts cycle through the devices."""
    count = len(cuda_devices(device))
    return device if count < 2 else f"cuda:{part % count}"


def enter_worker(environments: Sequence[dict[str, str]]) -> None:
    """Give this worker process of a pool one of `environments`; workers that start in sequence take successive ones."""
    # multiprocessing names the process SpawnProcess-7. A shared counter could not be pickled with the task runner.
    digits = multiprocessing.current_process().name.rpartition("-")[2]
    own = environments[(int(digits) if digits.isdecimal() else 0) % len(environments)]
    os.environ.update(own)
    if "CUDA_VISIBLE_DEVICES" in own:
        import torch

        # Tasks arrive with the environment of the flow's process, which would expose all devices again. CUDA reads the
        # variable once, here.
        torch.cuda.init()
    elif "OMP_NUM_THREADS" in own and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(own["OMP_NUM_THREADS"]))
