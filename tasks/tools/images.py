"""Synthetic images outside a run: a contact sheet, or a large set on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tasks.runtime.store import atomic_file
from terrine.device import resolve_device
from terrine.synthetic.contact_sheet import contact_sheet
from terrine.synthetic.program import draw
from terrine.synthetic.shards import Stretch, Written, write_stretch


def write_sheet(path: Path, kind: str, *, count: int, seed: int, size: int, channels: int, device: str) -> np.ndarray:
    """Draw `count` images of a program, write them to a PNG as a contact sheet, and return it.

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
    """Cost of an image set: images and bytes on disk, shards already intact, seconds, and images drawn per second."""

    images: int
    bytes: int
    kept: int
    seconds: float
    images_per_second: float


def write_set(
    folder: Path,
    stretches: Sequence[Stretch],
    *,
    device: str = "cpu",
    progress: Callable[[Written], None] = lambda shard: None,
) -> Cost:
    """Write an image set as shards `shard-000000.npy`, ...; intact shards are kept.

    Args:
        folder: Folder of the shards.
        stretches: Images of each shard.
        device: Device that draws them.
        progress: Function called after every shard.
    """
    start = time.perf_counter()
    chosen = str(resolve_device(device))
    written: list[Written] = []
    for number, stretch in enumerate(stretches):
        written.append(write_stretch(folder / f"shard-{number:06d}.npy", stretch, device=chosen))
        progress(written[-1])
    seconds = time.perf_counter() - start
    drawn = [shard for shard in written if shard.state != "kept"]
    return Cost(
        images=sum(shard.images for shard in written),
        bytes=sum(shard.bytes for shard in written),
        kept=len(written) - len(drawn),
        seconds=seconds,
        images_per_second=sum(shard.images for shard in drawn) / seconds,
    )
