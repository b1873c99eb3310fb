"""The Prefect task runner that the parameters ask for: threads, processes, Dask or Ray.

Whoever carries a task, its arguments are small: a run is its parameters and a path, and artefacts are read and written
at their place on disk. So every worker must see the project's folder under the same path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from flows import placement
from tasks.config.sections import Runner
from terrine.errors import SettingError


def _threads(workers: int, devices: Sequence[str], settings: Runner) -> TaskRunner[Any]:
    return ThreadPoolTaskRunner(max_workers=workers)


def _processes(workers: int, devices: Sequence[str], settings: Runner) -> TaskRunner[Any]:
    environments = placement.worker_environments(workers, devices, _cores())
    return ProcessPoolTaskRunner(max_workers=workers, initializer=placement.enter_worker, initargs=(environments,))


def _dask(workers: int, devices: Sequence[str], settings: Runner) -> TaskRunner[Any]:
    from prefect_dask import DaskTaskRunner

    if settings.address is not None:
        return DaskTaskRunner(address=settings.address, client_kwargs={"timeout": "20s"})
    return DaskTaskRunner(cluster_class=local_cluster, cluster_kwargs={"workers": workers, "devices": tuple(devices)})


def local_cluster(workers: int, devices: Sequence[str] = ()) -> Any:
    """Start a Dask cluster of single-threaded worker processes on this machine, one device each where there are any.

    Dask's own LocalCluster gives all workers one environment; otherwise this is the same. A worker that dies is
    replaced, and what it was doing is done again by another.
    """
    from distributed import Nanny, Scheduler, SpecCluster

    common = {"nthreads": 1, "host": "127.0.0.1", "memory_limit": 1 / workers, "dashboard": False}
    environments = placement.worker_environments(workers, devices, _cores())
    return SpecCluster(
        scheduler={"cls": Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard": False}},
        workers={
            number: {"cls": Nanny, "options": {**common, "env": environment}}
            for number, environment in enumerate(environments)
        },
    )


def _ray(workers: int, devices: Sequence[str], settings: Runner) -> TaskRunner[Any]:
    try:
        from prefect_ray import RayTaskRunner
    except ImportError as error:
        raise SettingError(
            f"runner.kind=ray needs packages that are not installed ({error}). Install them with "
            "`pip install 'terrine[ray]'`, or take runner.kind=dask, which needs nothing else."
        ) from error
    if settings.address is not None:
        return RayTaskRunner(address=settings.address)
    return RayTaskRunner(
        init_kwargs={"num_cpus": workers, "num_gpus": len(devices), "include_dashboard": False, "log_to_driver": False}
    )


RUNNERS: dict[str, Callable[[int, Sequence[str], Runner], TaskRunner[Any]]] = {
    "threads": _threads,
    "processes": _processes,
    "dask": _dask,
    "ray": _ray,
}


def task_runner(settings: Runner, device: str = "cpu") -> TaskRunner[Any]:
    """Return the task runner that the parameters `runner` and `device` ask for.

    Raises SettingError for a runner that is not installed.
    """
    devices = placement.cuda_devices(device)
    return RUNNERS[settings.kind](placement.number_of_workers(settings.workers, devices, _cores()), devices, settings)


@contextmanager
def device_per_task(settings: Runner, device: str) -> Iterator[None]:
    """Have Ray give each task submitted in the block a device of its own, where this machine has devices (`device`
    auto) or always (`cuda`): it hides all devices from tasks that ask for none. The other runners need nothing.
    """
    if settings.kind != "ray" or (device != "cuda" and not placement.cuda_devices(device)):
        yield
        return
    from prefect_ray.context import remote_options

    with remote_options(num_gpus=1):
        yield


def _cores() -> int:
    return os.cpu_count() or 1
