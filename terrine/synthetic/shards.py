"""Large image sets on disk: uint8 .npy shards with digests, which are read through memory maps.

A shard contains a `Stretch`: consecutive images of one program. `write_stretch` ensures that a shard exists and is
intact, so workers may draw stretches in any order. A shard is written to a temporary file, flushed, renamed, and then
recorded with its SHA-256. An interrupted write leaves no record. A shard that does not match its record is drawn again.
Runs store their images this way (`tasks.pipeline.synthesize`).

    for number, stretch in enumerate(stretches("dead_leaves", count=1_300_000, seed=0, size=28, channels=1)):
        write_stretch(folder / f"shard-{number:06d}.npy", stretch)
"""

import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from terrine.determinism.parallel import side_by_side
from terrine.errors import SettingError
from terrine.files import atomic_file, file_digest, json_object, write_errors, write_text
from terrine.geometry import Size, in_json, pixels, sides
from terrine.synthetic.program import VERSION, draw, program

SHARD_BYTES = 64 << 20
SLICE_BYTES = 8 << 20
PART_BYTES, PART = 4 << 20, 1_000
"""Size of the parts that CPU threads draw: a program's operations are too small to be divided among threads."""
_STALE_SECONDS = 3_600.0
"""Age from which a temporary file is deleted."""


@dataclass(frozen=True)
class Stretch:
    """Images `first` .. `first + count - 1` of a program, which determine the bytes of a shard."""

    kind: str
    seed: int
    size: Size
    channels: int
    first: int
    count: int

    def describe(self) -> dict[str, Any]:
        """Return the stretch and the version of the programs for a shard's record."""
        return {**asdict(self), "size": in_json(self.size), "version": VERSION}


def stretches(kind: str, *, count: int, seed: int, size: Size, channels: int, shard: int = 0) -> list[Stretch]:
    """Divide images 0 .. count - 1 of a program into stretches of `shard` images (0: of 64 MB).

    Raises:
        SettingError: an unknown program, no image, or a negative shard.
    """
    program(kind)
    if count < 1:
        raise SettingError(f"image set '{kind}': count is {count}; draw at least one image.")
    if shard < 0:
        raise SettingError(f"image set '{kind}': shard is {shard}; use a positive number, or 0.")
    shard = shard or max(1, SHARD_BYTES // max(1, channels * pixels(size)))
    return [Stretch(kind, seed, size, channels, first, min(shard, count - first)) for first in range(0, count, shard)]


@dataclass(frozen=True)
class Written:
    """Result for a shard: `state` is "kept" (it was intact), "drawn", or "redrawn" (it was damaged).

    `seconds` is the duration of drawing, even if the shard was drawn earlier.
    """

    path: Path
    state: str
    images: int
    bytes: int
    seconds: float
    sha256: str


def write_stretch(
    path: Path,
    stretch: Stretch,
    *,
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Written:
    """Ensure that the shard at `path` contains `stretch`, drawing it if it is missing, different or damaged.

    Memory use: a few slices of 8 MB and the program's working memory. On a CPU, all threads of torch draw parts.

    Args:
        path: The shard, in the format of `numpy.save`.
        stretch: Its images.
        device: Device that draws them.
        progress: Called with the number of images just written.

    Raises:
        ArtefactError: the disk is full; the partial file is removed.
    """
    record = path.with_suffix(".json")
    known = json_object(record) if path.is_file() else None
    damaged = False
    if known is not None and known.get("images") == stretch.describe():
        if known.get("sha256") == file_digest(path):
            if progress:
                progress(stretch.count)
            return Written(path, "kept", stretch.count, known["bytes"], known["seconds"], known["sha256"])
        damaged = True
    start = time.perf_counter()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Until the shard is recorded again it is incomplete.
    record.unlink(missing_ok=True)
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # left by killed writers; a live writer's file is young
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                leftover.unlink()
    digest = hashlib.sha256()
    with write_errors(path), atomic_file(path) as stream:
        for block in _blocks(stretch, device, progress):
            digest.update(block)
            stream.write(block)
    written = Written(
        path,
        "redrawn" if damaged else "drawn",
        stretch.count,
        path.stat().st_size,
        round(time.perf_counter() - start, 3),
        digest.hexdigest(),
    )
    entry = {"images": stretch.describe(), "sha256": written.sha256, "bytes": written.bytes, "seconds": written.seconds}
    with write_errors(record):
        write_text(record, json.dumps(entry, indent=2) + "\n")
    return written


def read_shard_record(path: Path) -> dict[str, Any] | None:
    """Return the record of the shard at `path` (images, sha256, bytes, seconds), or None."""
    return json_object(path.with_suffix(".json"))


def _blocks(stretch: Stretch, device: str | torch.device, progress: Callable[[int], None] | None) -> Iterator[bytes]:
    """Yield the header and then slices of images of a shard's .npy file."""
    header = io.BytesIO()  # as `numpy.save` writes it
    shape = (stretch.count, stretch.channels, *sides(stretch.size))
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    yield header.getvalue()
    image_bytes = max(1, stretch.channels * pixels(stretch.size))
    on_cpu = torch.device(device).type in ("cpu", "mps")
    at_a_time = max(1, min(PART, PART_BYTES // image_bytes) if on_cpu else SLICE_BYTES // image_bytes)
    end = stretch.first + stretch.count

    def part(first: int) -> bytes:
        count = min(at_a_time, end - first)
        seed, size, channels = stretch.seed, stretch.size, stretch.channels
        drawn = draw(stretch.kind, seed=seed, first=first, count=count, size=size, channels=channels, device=device)
        return drawn.cpu().numpy().tobytes()

    for block in side_by_side(part, range(stretch.first, end, at_a_time), "cpu" if on_cpu else device):
        yield block
        if progress:
            progress(len(block) // image_bytes)
