"""Images of any number on disk: uint8 .npy shards with digests, written in slices, read through memory maps.

The unit is a `Stretch`: consecutive images of one program, which one shard holds. `write_stretch` makes sure that a
shard is there and intact, so stretches may be drawn by any number of workers in any order. A shard is written to a
temporary file, flushed, renamed, and only then recorded with its SHA-256: a killed writer leaves nothing that counts,
and a shard whose bytes do not match its record is drawn again. Runs keep their images this way
(`tasks.pipeline.synthesize`).

A set outside a run is described by a `Recipe`, which cuts it into stretches, and has a manifest; `open_shards` reads a
finished set without loading it.

    recipe = Recipe("dead_leaves", count=1_300_000, seed=0, size=28, channels=1)
    for number in range(len(recipe.plan())):
        write_shard(folder, recipe, number)
    finish(folder, recipe)
    images = open_shards(folder)          # images[17], images[5:9], len(images)
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
from terrine.errors import ArtefactError, SettingError
from terrine.files import atomic_file, file_digest, json_object, write_errors, write_text
from terrine.geometry import Size, as_size, in_json, pixels, sides
from terrine.npy import MappedRows, Segment
from terrine.synthetic.program import VERSION, draw, program

SHARD_BYTES = 64 << 20
SLICE_BYTES = 8 << 20
PART_BYTES, PART = 4 << 20, 1_000
"""What one thread of a CPU draws at a time: programs are made of small operations, which threads cannot share well."""
MANIFEST = "manifest.json"
_STALE_SECONDS = 3_600.0
"""A temporary file this old has lost its writer."""


@dataclass(frozen=True)
class Stretch:
    """Images `first` .. `first + count - 1` of a program: everything that the bytes of a shard depend on."""

    kind: str
    seed: int
    size: Size
    channels: int
    first: int
    count: int

    def describe(self) -> dict[str, Any]:
        """Return the stretch and the version of the programs, as a shard's record holds them."""
        return {**asdict(self), "size": in_json(self.size), "version": VERSION}


@dataclass(frozen=True)
class Recipe:
    """Everything that an image set's bytes depend on. `shard` is the number of images in a shard."""

    kind: str
    count: int
    seed: int
    size: Size
    channels: int
    shard: int = 0

    def __post_init__(self) -> None:
        program(self.kind)
        if self.count < 1:
            raise SettingError(f"image set '{self.kind}': count is {self.count}; draw at least one image.")
        if self.shard < 0:
            raise SettingError(f"image set '{self.kind}': shard is {self.shard}; use a positive number, or 0.")
        if self.shard == 0:
            object.__setattr__(self, "shard", max(1, SHARD_BYTES // self.image_bytes))

    @property
    def image_bytes(self) -> int:
        """Bytes of one image."""
        return max(1, self.channels * pixels(self.size))

    def plan(self) -> list[range]:
        """Return the image numbers of each shard."""
        return plan(self.count, self.shard)

    def stretch(self, number: int) -> Stretch:
        """Return what shard `number` holds."""
        numbers = self.plan()[number]
        return Stretch(self.kind, self.seed, self.size, self.channels, numbers.start, len(numbers))


@dataclass(frozen=True)
class Written:
    """What became of a shard: `state` is "kept" (it was there and intact), "drawn", or "redrawn" (it was damaged).

    `seconds` are those of the drawing, also where that was another time and the shard was kept.
    """

    path: Path
    state: str
    images: int
    bytes: int
    seconds: float
    sha256: str


def plan(count: int, shard: int) -> list[range]:
    """Cut images 0 .. count - 1 into ranges of `shard` images; the last may be shorter."""
    return [range(first, min(first + shard, count)) for first in range(0, count, shard)]


def shard_path(folder: Path, number: int) -> Path:
    """Return where shard `number` of the set in `folder` lies."""
    return folder / f"shard-{number:06d}.npy"


def record_path(path: Path) -> Path:
    """Return where a shard's record lies: what it holds, its SHA-256, and what it cost."""
    return path.with_suffix(".json")


def write_stretch(
    path: Path,
    stretch: Stretch,
    *,
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] | None = None,
    before: Callable[[], None] | None = None,
) -> Written:
    """Make sure that the shard at `path` holds `stretch`, drawing it if it is missing, foreign or damaged.

    The bytes are those that `numpy.save` would write. Memory is a few slices of 8 MB and the program's working memory,
    whatever the shard's size. On a CPU, parts are drawn side by side by as many threads as torch has. `progress` is
    called with the number of images just written; `before`, once, before anything on disk is changed. Raises
    ArtefactError if the disk is full; the partial file is removed.
    """
    record = record_path(path)
    known = json_object(record) if path.is_file() else None
    damaged = False
    if known is not None and known.get("images") == stretch.describe():
        if known.get("sha256") == file_digest(path):
            if progress:
                progress(stretch.count)
            return Written(path, "kept", stretch.count, known["bytes"], known["seconds"], known["sha256"])
        damaged = True
    if before:
        before()
    start = time.perf_counter()
    path.parent.mkdir(parents=True, exist_ok=True)
    # From here until the shard is recorded it may not be taken for complete.
    record.unlink(missing_ok=True)
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of killed writers; a live writer's is young
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
    """Return what is recorded of the shard at `path`: images, sha256, bytes, seconds; None where nothing is."""
    return json_object(record_path(path))


def write_shard(
    folder: Path,
    recipe: Recipe,
    number: int,
    *,
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Written:
    """Make sure that shard `number` of a set is on disk and intact; see `write_stretch`."""
    return write_stretch(
        shard_path(folder, number),
        recipe.stretch(number),
        device=device,
        progress=progress,
        # Until the set is finished again it is not complete.
        before=lambda: (folder / MANIFEST).unlink(missing_ok=True),
    )


def finish(folder: Path, recipe: Recipe) -> None:
    """Write the manifest, which makes the set complete, and clear away what killed writers left.

    Raises ArtefactError if a shard is missing or belongs to another recipe.
    """
    shards = []
    for number in range(len(recipe.plan())):
        path, stretch = shard_path(folder, number), recipe.stretch(number)
        known = read_shard_record(path)
        if not path.is_file() or known is None or known.get("images") != stretch.describe():
            raise ArtefactError(f"{path} is missing or belongs to other images; write shard {number} before finishing.")
        entry = {"file": path.name, "first": stretch.first, "count": stretch.count, "sha256": known["sha256"]}
        shards.append(entry)
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    content = {**asdict(recipe), "size": in_json(recipe.size), "version": VERSION, "dtype": "uint8", "shards": shards}
    with write_errors(folder):
        write_text(folder / MANIFEST, json.dumps(content, indent=2) + "\n")


class ImageSet(MappedRows):
    """A finished set: a read-only view [count, channels, *size] of its shards, with the recipe they came from."""

    def __init__(self, recipe: Recipe, segments: list[Segment]) -> None:
        super().__init__(segments)
        self.recipe = recipe

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageSet, (self.recipe, self.segments)


def open_shards(folder: Path) -> ImageSet:
    """Open a finished image set; nothing is read before it is asked for.

    Raises ArtefactError when the manifest or a shard is missing, or a shard has another shape than the manifest says.
    """
    manifest = json_object(folder / MANIFEST)
    if manifest is None:
        raise ArtefactError(f"{folder} holds no complete image set (no {MANIFEST}). Write the set again; it resumes.")
    said = {name: manifest[name] for name in ("kind", "count", "seed", "size", "channels", "shard")}
    recipe = Recipe(**said | {"size": as_size(said["size"])})
    segments = [Segment(folder / entry["file"], 0, entry["count"]) for entry in manifest["shards"]]
    images = ImageSet(recipe, segments)
    shape = (recipe.count, recipe.channels, *sides(recipe.size))
    if images.shape != shape or images.dtype != np.uint8:
        raise ArtefactError(f"{folder} holds {images.dtype} {images.shape} where the manifest says uint8 {shape}.")
    return images


def _blocks(stretch: Stretch, device: str | torch.device, progress: Callable[[int], None] | None) -> Iterator[bytes]:
    """Yield the bytes of a shard's .npy file: the header, then slice after slice of images."""
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
