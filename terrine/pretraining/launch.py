"""SimCLR on several devices of one machine: one process per device, one batch over all of them.

The processes rendezvous through a file in a temporary folder, so no port is opened. They write the run's ordinary
checkpoint, which the caller loads after they finish, like that of any finished run. A run may therefore be started on
four devices, killed, and finished on one.
"""

import copy
import tempfile
from collections.abc import Sequence
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.npy import MappedRows, Rows
from terrine.pretraining.settings import SimCLRSettings
from terrine.pretraining.simclr import Progress, pretrain

_POLL_SECONDS = 0.2


def pretrain_on_devices(
    backbone: Backbone,
    images: Rows,
    settings: SimCLRSettings,
    *,
    seed: int,
    devices: Sequence[torch.device | str],
    checkpoint: Path,
    progress: Progress | None = None,
) -> list[dict[str, float]]:
    """Pretrain like `terrine.pretraining.simclr.pretrain`, on all `devices` together (`cpu` may be repeated).

    Images in memory are copied once into memory that all processes share; images in files (`terrine.npy`) are mapped by
    every process. Raises what `pretrain` raises, and torch.multiprocessing.ProcessRaisedException with the traceback
    of a process that failed. The other processes are then stopped, and the last checkpoint is kept.
    """
    if not devices:
        raise SettingError("pretrain: no device was given. Name at least one, 'cpu' for example.")
    if len(devices) > 1:
        mine = [str(device) for device in devices]
        context = mp.get_context("spawn")
        reports: SimpleQueue[tuple[float, str]] = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            shared = torch.from_numpy(images) if isinstance(images, np.ndarray) else images
            arguments = (mine, folder, backbone, shared, settings, seed, checkpoint, reports)
            processes = mp.spawn(_work, arguments, nprocs=len(devices), join=False)
            while not processes.join(timeout=_POLL_SECONDS):
                _pass_on(reports, progress)
        _pass_on(reports, progress)
    return pretrain(
        backbone,
        images,
        settings,
        seed=seed,
        device=devices[0],
        checkpoint=checkpoint,
        progress=progress if len(devices) == 1 else None,
    )


def _pass_on(reports: "SimpleQueue[tuple[float, str]]", progress: Progress | None) -> None:
    while not reports.empty():
        report = reports.get()
        if progress is not None:
            progress(*report)


def _work(
    rank: int,
    devices: list[str],
    folder: str,
    backbone: Backbone,
    images: Tensor | MappedRows,
    settings: SimCLRSettings,
    seed: int,
    checkpoint: Path,
    reports: "SimpleQueue[tuple[float, str]]",
) -> None:
    device = torch.device(devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // len(devices)))
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=len(devices))
    try:
        pretrain(
            copy.deepcopy(backbone),  # tensors passed through torch.multiprocessing share memory
            images.numpy() if isinstance(images, Tensor) else images,
            settings,
            seed=seed,
            device=device,
            checkpoint=checkpoint,
            progress=(lambda fraction, text: reports.put((fraction, text))) if rank == 0 else None,
        )
    finally:
        dist.destroy_process_group()
