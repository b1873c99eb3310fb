"""Rows that lie in several .npy files, seen as one array and read only as they are asked for.

    rows = MappedRows([Segment(Path("a.npy"), 0, 10_000), Segment(Path("b.npy"), 500, 2_000)])
    rows.shape, rows[17], rows[5:9], rows[index_array]        # the last three are copies, ordinary writable arrays

Images of a run are stored in shards, source by source, and are asked for in another order: this is the view between
the two. Opening it reads the files' headers; a million images cost no memory. It is handed to another process as the
names of its files, so that every process maps them by itself. `numpy.asarray(rows)` reads everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine import npy
from terrine.errors import ArtefactError


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

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            first, *rest = index
            chosen = self[first]
            return chosen[tuple(rest)] if isinstance(first, int | np.integer) else chosen[(slice(None), *rest)]
        if isinstance(index, int | np.integer):
            row = range(len(self))[int(index)]
            number = int(np.searchsorted(self._starts, row, side="right")) - 1
            return np.array(self._parts[number][row - self._starts[number]])
        return self._gather(self._numbers(index))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("Rows in files cannot become an array without a copy.")
        rows = np.concatenate(self._parts)
        return rows if dtype is None else rows.astype(dtype, copy=False)

    def _numbers(self, index: Any) -> NDArray[np.int64]:
        """Return the row numbers that a slice, a mask or an array of indices names."""
        if isinstance(index, slice):
            return np.arange(*index.indices(len(self)))
        numbers = np.asarray(index)
        if numbers.dtype == bool:
            if numbers.shape != (len(self),):
                raise IndexError(f"A mask of shape {numbers.shape} was given for {len(self)} rows.")
            return np.flatnonzero(numbers)
        if numbers.size == 0:
            return numbers.astype(np.int64)
        if numbers.dtype.kind not in "iu":
            raise IndexError(f"Rows are chosen by integers, a slice or a mask, not by {numbers.dtype}.")
        if numbers.min() < -len(self) or numbers.max() >= len(self):
            raise IndexError(f"Rows {numbers.min()} to {numbers.max()} were asked for, and there are {len(self)}.")
        return np.where(numbers < 0, numbers + len(self), numbers).astype(np.int64)

    def _gather(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        flat = numbers.ravel()
        rows = np.empty((len(flat), *self.shape[1:]), self.dtype)
        holders = np.searchsorted(self._starts, flat, side="right") - 1
        for holder in np.unique(holders):
            here = holders == holder
            rows[here] = self._parts[holder][flat[here] - self._starts[holder]]
        return rows.reshape(*numbers.shape, *self.shape[1:])


Rows = np.ndarray | MappedRows
"""Rows in memory or in files: whoever takes them one batch at a time takes both."""


def _open(path: Path) -> NDArray[Any]:
    try:
        return npy.load(path, memory_map=True)
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
