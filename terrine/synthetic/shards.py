"""Image sets of any size on disk: uint8 .npy shards and a manifest, written in slices, read through memory maps.

A set is described by a `Recipe`; its images are cut into shards by index range, and each shard is drawn by itself, so
any number of workers may draw them in any order. A shard is written to a temporary file, flushed, renamed, and only
then recorded with its SHA-256: a killed writer leaves nothing that counts, and a shard whose bytes do not match its
record is drawn again. `open_shards` reads a finished set without loading it.

    recipe = Recipe("dead_leaves", count=1_300_000, seed=0, size=28, channels=1)
    for number in range(len(recipe.plan())):
        write_shard(folder, recipe, number)
    finish(folder, recipe)
    images = open_shards(folder)          # images[17], images[5:9], len(images)
"""

import errno
import hashlib
import json
import os
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from terrine.errors import ArtefactError, SettingError
from terrine.synthetic.registry import draw, program

SHARD_BYTES = 64 << 20
SLICE_BYTES = 8 << 20
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Recipe:
    """Everything that an image set's bytes depend on. `shard` is the number of images in a shard."""

    kind: str
    count: int
    seed: int
    size: int
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
        return max(1, self.channels * self.size * self.size)

    def plan(self) -> list[range]:
        """Return the image numbers of each shard."""
        return plan(self.count, self.shard)


@dataclass(frozen=True)
class Written:
    """What became of a shard: `state` is "kept" (it was there and intact), "drawn", or "redrawn" (it was damaged)."""

    number: int
    state: str
    images: int
    bytes: int
    seconds: float
    sha256: str


def plan(count: int, shard: int) -> list[range]:
    """Cut images 0 .. count - 1 into ranges of `shard` images; the last may be shorter."""
    return [range(first, min(first + shard, count)) for first in range(0, count, shard)]


def shard_path(folder: Path, number: int) -> Path:
    """Return where shard `number` of the set in `folder` lies; its record is the same name with .json."""
    return folder / f"shard-{number:06d}.npy"


def write_shard(
    folder: Path,
    recipe: Recipe,
    number: int,
    *,
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Written:
    """Make sure that shard `number` is on disk and intact, drawing it if it is missing, foreign or damaged.

    Memory is a slice of 8 MB and the program's working memory, whatever the shard's size. `progress` is called with
    the number of images just written. Raises ArtefactError if the disk is full; the partial file is removed.
    """
    path, record = shard_path(folder, number), shard_path(folder, number).with_suffix(".json")
    numbers = recipe.plan()[number]
    start = time.perf_counter()
    damaged = False
    if path.is_file() and (known := _read_record(record)) is not None and known["recipe"] == asdict(recipe):
        if known["sha256"] == file_digest(path):
            if progress:
                progress(len(numbers))
            return Written(number, "kept", len(numbers), path.stat().st_size, 0.0, known["sha256"])
        damaged = True
    folder.mkdir(parents=True, exist_ok=True)
    # From here until the shard is recorded and the set finished again, neither may be taken for complete.
    record.unlink(missing_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    digest = hashlib.sha256()
    with _whole_file(path) as stream:
        for block in _blocks(recipe, numbers, device, progress):
            digest.update(block)
            stream.write(block)
    entry = {"recipe": asdict(recipe), "first": numbers.start, "count": len(numbers), "sha256": digest.hexdigest()}
    _write_json(record, entry)
    seconds = time.perf_counter() - start
    state = "redrawn" if damaged else "drawn"
    return Written(number, state, len(numbers), path.stat().st_size, seconds, digest.hexdigest())


def finish(folder: Path, recipe: Recipe) -> None:
    """Write the manifest, which makes the set complete, and clear away what killed writers left.

    Raises ArtefactError if a shard is missing or belongs to another recipe.
    """
    shards = []
    for number, numbers in enumerate(recipe.plan()):
        path = shard_path(folder, number)
        known = _read_record(path.with_suffix(".json"))
        if not path.is_file() or known is None or known["recipe"] != asdict(recipe):
            raise ArtefactError(f"{path} is missing or belongs to other images; write shard {number} before finishing.")
        shards.append({"file": path.name, "first": numbers.start, "count": len(numbers), "sha256": known["sha256"]})
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    _write_json(folder / MANIFEST, {**asdict(recipe), "dtype": "uint8", "shards": shards})


class ImageSet:
    """A read-only view of a finished set: `len`, an index, a slice or an array of indices give uint8 arrays."""

    def __init__(self, recipe: Recipe, shards: list[NDArray[np.uint8]]) -> None:
        self.recipe = recipe
        self.shards = shards
        self._starts = [numbers.start for numbers in recipe.plan()]

    def __len__(self) -> int:
        return self.recipe.count

    def __getitem__(self, index: int | slice | NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        if isinstance(index, int | np.integer):
            place = range(len(self))[int(index)]
            number = bisect_right(self._starts, place) - 1
            return np.asarray(self.shards[number][place - self._starts[number]])
        numbers = np.arange(len(self))[index]
        images = np.empty((len(numbers), *self.shards[0].shape[1:]), dtype=np.uint8)
        holders = np.searchsorted(self._starts, numbers, side="right") - 1
        for number in np.unique(holders):
            here = holders == number
            images[here] = self.shards[number][numbers[here] - self._starts[number]]
        return images


def open_shards(folder: Path) -> ImageSet:
    """Open a finished image set; nothing is read before it is asked for.

    Raises ArtefactError when the manifest or a shard is missing, or a shard has another shape than the manifest says.
    """
    manifest = _read_record(folder / MANIFEST)
    if manifest is None:
        raise ArtefactError(f"{folder} holds no complete image set (no {MANIFEST}). Write the set again; it resumes.")
    recipe = Recipe(**{name: manifest[name] for name in ("kind", "count", "seed", "size", "channels", "shard")})
    shards = []
    for entry in manifest["shards"]:
        path = folder / entry["file"]
        shape = (entry["count"], recipe.channels, recipe.size, recipe.size)
        try:
            shard = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ArtefactError(f"{path} cannot be read ({error}). Write the set again; it resumes.") from error
        if shard.shape != shape or shard.dtype != np.uint8:
            raise ArtefactError(f"{path} holds {shard.dtype} {shard.shape} where the manifest says uint8 {shape}.")
        shards.append(shard)
    return ImageSet(recipe, shards)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _blocks(
    recipe: Recipe, numbers: range, device: str | torch.device, progress: Callable[[int], None] | None
) -> Iterator[bytes]:
    """Yield the bytes of a shard's .npy file: the header, then slice after slice of images."""
    shape = (len(numbers), recipe.channels, recipe.size, recipe.size)
    yield _npy_header(shape)
    at_a_time = max(1, SLICE_BYTES // recipe.image_bytes)
    for first in range(numbers.start, numbers.stop, at_a_time):
        count = min(at_a_time, numbers.stop - first)
        geometry = {"seed": recipe.seed, "size": recipe.size, "channels": recipe.channels}
        images = draw(recipe.kind, first=first, count=count, device=device, **geometry)
        yield images.cpu().numpy().tobytes()
        if progress:
            progress(count)


def _npy_header(shape: tuple[int, ...]) -> bytes:
    """Return the header of a version 1.0 .npy file of uint8 in C order, padded to a multiple of 64 bytes."""
    text = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def _read_record(path: Path) -> dict[str, Any] | None:
    """Return a JSON object, or None where there is none that can be read."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with _whole_file(path) as stream:
        stream.write((json.dumps(value, indent=2) + "\n").encode())


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary sibling for writing; flush and rename it to `path` at the end, or remove it after an error."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        # The rename itself must reach the disk before a record may speak of the file.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ArtefactError(
                f"{path}: the disk is full. Nothing half-written was kept; free some space and run again, it resumes."
            ) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
