"""Where the parts of a fan-out compute: one group per device, worker processes that see their own device alone.

A pool of processes or a Dask cluster gives each worker process one device through CUDA_VISIBLE_DEVICES, so a task asks
for `cuda` and gets the device of its worker. Threads share one process, so there the parts are dealt to the devices by
their numbers. Ray places by itself and is only told that a task needs a device. On a machine without CUDA devices
nothing of this happens.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence

ANY_DEVICE = ("auto", "cuda")
"""Values of the parameter `device` that leave open which of several devices is meant."""


def cuda_devices(device: str = "auto") -> tuple[str, ...]:
    """Return the CUDA devices of this machine that the parameter `device` leaves to choose from, as CUDA names them."""
    if device not in ANY_DEVICE:
        return ()
    import torch

    return visible_devices(device, torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_devices(device: str, count: int, inherited: str | None) -> tuple[str, ...]:
    """Return what may stand in CUDA_VISIBLE_DEVICES of a worker, one entry per device that this process can use.

    device: a device named there (`cpu`, `cuda:1`) is used as it is, and nothing is dealt. inherited:
    CUDA_VISIBLE_DEVICES of this process: its entries, not the numbers 0, 1, ..., name its devices.
    """
    if device not in ANY_DEVICE:
        return ()
    if not inherited:
        return tuple(str(number) for number in range(count))
    return tuple(entry.strip() for entry in inherited.split(","))[:count]


def number_of_workers(wanted: int | None, devices: Sequence[str], cores: int) -> int:
    """Return how many workers to start: as many as asked for, else one per device, else one per core."""
    return wanted or len(devices) or cores


def worker_environments(workers: int, devices: Sequence[str], cores: int) -> list[dict[str, str]]:
    """Return what each worker process adds to its environment: its share of the cores, and its device.

    Worker k gets device k, from the first again when there are more workers than devices. An OMP_NUM_THREADS that the
    user has set is left alone.
    """
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, cores // workers))}
    placed = [{"CUDA_VISIBLE_DEVICES": devices[worker % len(devices)]} if devices else {} for worker in range(workers)]
    return [threads | own for own in placed]


def device_of_part(device: str, part: int, devices: int) -> str:
    """Return the device on which part `part` computes when all parts share one process: in turn over the devices."""
    if device not in ANY_DEVICE or devices < 2:
        return device
    return f"cuda:{part % devices}"


def enter_worker(environments: Sequence[dict[str, str]]) -> None:
    """Make this worker process of a pool one of `environments`: workers that start one after the other take successive
    ones."""
    number = worker_number(multiprocessing.current_process().name)
    own = environments[number % len(environments)]
    os.environ.update(own)
    if "CUDA_VISIBLE_DEVICES" in own:
        import torch

        # Tasks arrive with the environment of the flow's process, which would show all devices again; CUDA reads the
        # variable once, and this is the moment.
        torch.cuda.init()
    elif "OMP_NUM_THREADS" in own and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(own["OMP_NUM_THREADS"]))


def worker_number(name: str) -> int:
    """Return the number of a process from the name multiprocessing gave it, SpawnProcess-7; 0 for another name.

    (A shared counter would be more direct, but Prefect pickles a flow with its task runner, and a counter cannot be.)
    """
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0
