"""Read .npy files: thread-safe, hardened against untrusted input, and several files as one array.

`numpy.load` opens archives and pickles as well, and reserves whatever memory a header claims. What comes from outside
goes through `from_bytes`, which takes arrays of numbers alone, exactly as long as their header says.

numpy parses a file's header with `ast`, and in some Pythons (seen in 3.11.7; CPython's issue 106905) two threads that
build syntax trees at the same time disturb each other: "SystemError: AST constructor recursion depth mismatch", raised
about a file that is as it should be.

`MappedRows` are rows of several .npy files, seen as one array and read only when they are asked for.

    rows = MappedRows([Segment(Path("a.npy"), 0, 10_000), Segment(Path("b.npy"), 500, 2_000)])
    rows.shape, rows[17], rows[5:9], rows[index_array]        # the last three are copies, ordinary writable arrays

Images of a run are stored in shards, source by source, and are read in another order. Opening the view reads only the
files' headers. It is pickled as the names of its files, so that every process maps them itself.
"""

import io
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from terrine.errors import ArtefactError, InputError, first_line

_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
"""Of the versions that arrays of numbers are written in."""

_one_at_a_time = threading.Lock()


def load(path: Path, *, memory_map: bool = False) -> NDArray[Any]:
    """Read the array of a .npy file, or map it; nothing is unpickled. Raises what `numpy.load` raises."""
    with _one_at_a_time:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if memory_map else None, allow_pickle=False)
    return array


def from_bytes(data: bytes, what: str) -> NDArray[Any]:
    """Return the array of numbers (bool, integers, floats, or rows of named ones) of a .npy file's content, read-only
    and without a copy.

    what: names it in errors. Raises InputError for anything else.
    """
    stream = io.BytesIO(data)
    try:
        with _one_at_a_time:
            version = npy_format.read_magic(stream)
            if version not in _HEADERS:
                raise ValueError(f"it is of version {version}")
            shape, columns_first, kind = _HEADERS[version](stream)
        parts = [kind] if kind.names is None else [kind[name].base for name in kind.names]
        if any(part.kind not in "biuf" for part in parts):
            raise ValueError(f"it holds {kind}")
        start = stream.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != len(data) - start:
            raise ValueError(f"it has {len(data) - start:,} bytes of numbers, and its header says another size")
        numbers: NDArray[Any] = np.frombuffer(data, kind, offset=start)
        return numbers.reshape(shape, order="F" if columns_first else "C")
    # A header is Python's text: its parser, numpy's types and sizes raise errors of many kinds.
    except Exception as error:
        why = first_line(error)[:120]
        raise InputError(f"{what} is no .npy file of numbers ({why}). Write it with numpy.save.") from error


def read(path: Path) -> NDArray[Any]:
    """Return the array of numbers in a .npy file that somebody brought. Raises InputError for anything else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    return from_bytes(data, str(path))


@dataclass(frozen=True)
class Segment:
    """Rows `first` .. `first + count - 1` of the .npy file at `path`."""

    path: Path
    first: int
    count: int


class MappedRows:
    """A read-only view [rows, ...] of segments, one after another, all of one dtype and one row shape.

    `len`, an index, a slice, an array of indices or a mask, alone or as the first of a tuple, give numpy arrays.
    Raises ArtefactError when a file is missing, damaged, too short, or does not fit the others.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        if not segments:
            raise ArtefactError("There are no files to read rows from. Run the stage that makes them again.")
        self.segments = _joined(segments)
        files = {segment.path: _open(segment.path) for segment in self.segments}
        head = files[self.segments[0].path]
        self._parts: list[NDArray[Any]] = []
        for segment in self.segments:
            file = files[segment.path]
            if file.shape[1:] != head.shape[1:] or file.dtype != head.dtype:
                raise ArtefactError(
                    f"{segment.path} holds {file.dtype} {file.shape}, which does not go with {head.dtype} {head.shape} "
                    f"in {self.segments[0].path}. Delete both and run the stage that makes them again."
                )
            if not 0 <= segment.first <= segment.first + segment.count <= len(file):
                raise ArtefactError(
                    f"{segment.path} holds {len(file)} rows where rows {segment.first} to "
                    f"{segment.first + segment.count - 1} are wanted. Run the stage that makes it again."
                )
            self._parts.append(file[segment.first : segment.first + segment.count])
        self._starts = np.cumsum([0, *(segment.count for segment in self.segments)])
        self._numbers = np.arange(self._starts[-1])
        self.dtype: np.dtype[Any] = head.dtype
        self.shape: tuple[int, ...] = (int(self._starts[-1]), *head.shape[1:])

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedRows, (self.segments,)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that all rows would take in memory."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray[Any]:
        first, *rest = index if isinstance(index, tuple) else (index,)
        numbers = np.asarray(self._numbers[first])
        holders = np.searchsorted(self._starts, numbers, side="right") - 1
        rows = np.empty((*numbers.shape, *self.shape[1:]), self.dtype)
        for holder in np.unique(holders):
            here = holders == holder
            rows[here] = self._parts[holder][numbers[here] - self._starts[holder]]
        return rows[(*[slice(None)] * numbers.ndim, *rest)] if rest else rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("Rows in files cannot become an array without a copy.")
        rows = np.concatenate(self._parts)
        return rows if dtype is None else rows.astype(dtype, copy=False)


Rows = np.ndarray | MappedRows
"""Rows in memory or in files: whoever takes them one batch at a time takes both."""


def _open(path: Path) -> NDArray[Any]:
    try:
        return load(path, memory_map=True)
    except (OSError, ValueError) as error:
        raise ArtefactError(
            f"{path} cannot be read ({error}). Delete it and run the stage that makes it again."
        ) from error


def _joined(segments: Sequence[Segment]) -> list[Segment]:
    """Join segments that follow one another in one file."""
    joined: list[Segment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if last is not None and last.path == segment.path and last.first + last.count == segment.first:
            joined[-1] = Segment(last.path, last.first, last.count + segment.count)
        else:
            joined.append(segment)
    return joined
