"""Read .npy files: thread-safe, hardened against untrusted input, and several files as one array.

`numpy.load` also opens archives and pickles, and allocates whatever memory a header claims. `from_bytes`, for untrusted
input, accepts only arrays of numbers whose data have exactly the claimed size.

numpy parses headers with `ast`, which is not thread-safe in some versions of Python (3.11.7; CPython's issue 106905):
"SystemError: AST constructor recursion depth mismatch". Hence the lock.

`MappedRows` is a view of rows in several .npy files, such as the shards of a run's images. Rows are read on access:

    rows = MappedRows([Segment(Path("a.npy"), 0, 10_000), Segment(Path("b.npy"), 500, 2_000)])
    rows.shape, rows[17], rows[5:9], rows[index_array]        # the last three are copies, ordinary writable arrays

Pickles contain only file names, so every process maps the files itself.
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
"""Header parsers by format version."""

_one_at_a_time = threading.Lock()


def load(path: Path, *, memory_map: bool = False) -> NDArray[Any]:
    """Read or memory-map the array of a .npy file without unpickling. Errors are those of `numpy.load`."""
    with _one_at_a_time:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if memory_map else None, allow_pickle=False)
    return array


def from_bytes(data: bytes, what: str) -> NDArray[Any]:
    """Return the array in a .npy file's content, read-only and without a copy.

    Args:
        data: Content of a file with booleans, integers, floats, or records of these.
        what: Name of the content in error messages.

    Raises:
        InputError: The file has any other content.
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
            raise ValueError(f"it contains {kind}")
        start = stream.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != len(data) - start:
            raise ValueError(f"it has {len(data) - start:,} bytes of numbers, which is not the size in its header")
        numbers: NDArray[Any] = np.frombuffer(data, kind, offset=start)
        return numbers.reshape(shape, order="F" if columns_first else "C")
    except Exception as error:  # Python's parser and numpy raise errors of many types on a damaged header
        why = first_line(error)[:120]
        raise InputError(f"{what} is not a .npy file of numbers ({why}). Write it with numpy.save.") from error


def read(path: Path) -> NDArray[Any]:
    """Return the array of numbers in an untrusted .npy file. Raise InputError for anything else."""
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
    """A read-only view [rows, ...] of consecutive segments with one dtype and row shape.

    Indexing by a number, slice, index array or mask (also as the first of a tuple) returns a numpy array.

    Raises:
        ArtefactError: A file is missing, damaged or too short, or its dtype or row shape differs from the others.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        if not segments:
            raise ArtefactError("There are no files to read rows from. Run the stage that writes them again.")
        self.segments = _joined(segments)
        files = {segment.path: _open(segment.path) for segment in self.segments}
        head = files[self.segments[0].path]
        self._parts: list[NDArray[Any]] = []
        for segment in self.segments:
            file = files[segment.path]
            if file.shape[1:] != head.shape[1:] or file.dtype != head.dtype:
                raise ArtefactError(
                    f"{segment.path} contains {file.dtype} {file.shape}, but {self.segments[0].path} contains "
                    f"{head.dtype} {head.shape}. Delete both and run the stage that writes them again."
                )
            if not 0 <= segment.first <= segment.first + segment.count <= len(file):
                raise ArtefactError(
                    f"{segment.path} has {len(file)} rows, but rows {segment.first} to "
                    f"{segment.first + segment.count - 1} are needed. Run the stage that writes it again."
                )
            self._parts.append(file[segment.first : segment.first + segment.count])
        self._starts = np.cumsum([0, *(segment.count for segment in self.segments)])
        self._numbers = np.arange(self._starts[-1])
        self.dtype: np.dtype[Any] = head.dtype
        self.shape: tuple[int, ...] = (int(self._starts[-1]), *head.shape[1:])
        self.ndim = len(self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedRows, (self.segments,)

    @property
    def nbytes(self) -> int:
        """Size of all rows in bytes."""
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
            raise ValueError("Rows in files cannot be converted to an array without a copy.")
        rows = np.concatenate(self._parts)
        return rows if dtype is None else rows.astype(dtype, copy=False)


Rows = np.ndarray | MappedRows
"""Rows in memory or in files."""


def _open(path: Path) -> NDArray[Any]:
    try:
        return load(path, memory_map=True)
    except (OSError, ValueError) as error:
        raise ArtefactError(
            f"{path} cannot be read ({error}). Delete it and run the stage that writes it again."
        ) from error


def _joined(segments: Sequence[Segment]) -> list[Segment]:
    """Join adjacent segments of a file."""
    joined: list[Segment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if last is not None and last.path == segment.path and last.first + last.count == segment.first:
            joined[-1] = Segment(last.path, last.first, last.count + segment.count)
        else:
            joined.append(segment)
    return joined
