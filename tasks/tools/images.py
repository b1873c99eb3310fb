"""images: synthetic images outside a pipeline run: a contact sheet to look at, or a large set on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tasks.runtime.store import atomic_file
from terrine.device import resolve_device
from terrine.synthetic.contact_sheet import contact_sheet
from terrine.synthetic.program import draw
from terrine.synthetic.shards import Stretch, Written, write_stretch


def write_sheet(path: Path, kind: str, *, count: int, seed: int, size: int, channels: int, device: str) -> np.ndarray:
    """Draw `count` images of a program and write them to a PNG as a contact sheet, which is returned.

    Small images are enlarged to about 84 pixels.
    """
    images = draw(kind, seed=seed, first=0, count=count, size=size, channels=channels, device=resolve_device(device))
    sheet = contact_sheet(images.cpu().numpy(), scale=max(1, 84 // size))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        Image.fromarray(sheet).save(stream, format="png")
    return sheet


@dataclass(frozen=True)
class Cost:
    """What an image set cost: images and bytes on disk, shards found intact, and the time it all took."""

    images: int
    bytes: int
    kept: int
    seconds: float
    images_per_second: float


def write_set(
    folder: Path,
    stretches: Sequence[Stretch],
    *,
    workers: int = 1,
    device: str = "cpu",
    progress: Callable[[Written], None] | None = None,
) -> Cost:
    """Write an image set as shards `shard-000000.npy`, ..., with `workers` processes; intact shards are kept.

    `progress` is called in this process after every shard.
    """
    start = time.perf_counter()
    shards = [(folder / f"shard-{number:06d}.npy", stretch) for number, stretch in enumerate(stretches)]
    written: list[Written] = []

    def note(shard: Written) -> None:
        written.append(shard)
        if progress:
            progress(shard)

    chosen = str(resolve_device(device))
    if workers <= 1:
        for path, stretch in shards:
            note(write_stretch(path, stretch, device=chosen))
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
            pending = [pool.submit(write_stretch, path, stretch, device=chosen) for path, stretch in shards]
            for future in as_completed(pending):
                note(future.result())
    seconds = time.perf_counter() - start
    drawn = [shard for shard in written if shard.state != "kept"]
    return Cost(
        images=sum(shard.images for shard in written),
        bytes=sum(shard.bytes for shard in written),
        kept=len(written) - len(drawn),
        seconds=seconds,
        images_per_second=sum(shard.images for shard in drawn) / seconds,
    )


def _one_thread() -> None:
    torch.set_num_threads(1)
