"""NIfTI volumes (.nii, .nii.gz) listed in a CSV; one slice or projection of each becomes an image.

The CSV has the columns path and label, and optionally group (the subject), party and split, as for images
(`terrine.data.image_table`). Volumes are read slice by slice, after their claimed size has been compared with the size
of the file. Errors contain no values of a header.
"""

from __future__ import annotations

import gzip
import logging
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from terrine.data.file_dataset import FileDataset, Listing
from terrine.data.image_table import Record, read_image_table
from terrine.data.images import windowed
from terrine.data.source import Window
from terrine.errors import InputError
from terrine.extras import from_extra

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


class Nifti(FileDataset):
    """The user's own volumes, listed in a CSV; each becomes one picture."""

    name: Literal["nifti"] = "nifti"
    plane: Literal["sagittal", "coronal", "axial"] = "axial"
    """Orientation of slices, or the plane of a projection, in patient coordinates."""
    view: Literal["middle", "max", "mean"] | Annotated[int, Field(ge=0)] = "middle"
    """Image made from a volume: its middle slice, the maximum or mean over all slices, or a slice number, counted from
    the patient's left, back or feet."""
    window: Window | None = None
    """[low, high]: values shown as black and white. null: the `percentiles` of the image."""
    percentiles: Window = (1.0, 99.0)
    """Percentiles of the image shown as black and white if `window` is null."""

    def found(self, at: Path) -> Listing:
        from terrine.data.image_files import each_file

        records, remarks = read_image_table(at / self.path, self.findings)
        across = PLANES.index(self.plane)
        sizes: Counter[tuple[int, int, str]] = Counter()
        kept = []
        for number, shape in each_file(lambda record: volume_shape(record.path), records, skip=self.skips):
            if isinstance(self.view, int) and self.view >= shape[across]:
                raise InputError(
                    f"{records[number].path} has {shape[across]} {self.plane} slices, numbered from 0, so "
                    f"data.view={self.view} is out of range. Choose a smaller number, or data.view=middle."
                )
            width, height = (length for axis, length in enumerate(shape) if axis != across)
            sizes[width, height, "L"] += 1
            kept.append(records[number])
        unreadable = len(records) - len(kept)
        return Listing(kept, Counter({"volumes that cannot be used": unreadable} if unreadable else {}), sizes, remarks)

    def picture(self, record: Record) -> tuple[Image.Image, np.ndarray]:
        return read_slice(record.path, self.plane, self.view, self.window, self.percentiles)


PLANES = ("sagittal", "coronal", "axial")
MOST_BYTES = 2**31
"""Largest volume in bytes: twice a whole-body CT."""
_MOST_READ = 2**28  # bytes per read: a slice
_MOST_DEFLATED = 1032  # largest compression ratio of gzip


class _Bounded:
    """File wrapper that refuses reads larger than one slice, regardless of the header."""

    def __init__(self, file: Any) -> None:
        self.seek, self.tell, self.write, self._file = file.seek, file.tell, file.write, file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_READ:
            raise ValueError("a read is larger than a slice")
        return self._file.read(size)


def volume_shape(path: Path) -> tuple[int, ...]:
    """Return the numbers of voxels from left to right, back to front and feet to head.

    Raises:
        InputError: the file cannot be used; the message does not contain the path.
    """
    with _volume(path) as (volume, axes, _):
        return tuple(volume.shape[axis] for axis in axes)


def read_slice(
    path: Path,
    plane: str,
    view: Literal["middle", "max", "mean"] | int,
    window: tuple[float, float] | None,
    percentiles: tuple[float, float],
) -> tuple[Image.Image, np.ndarray]:
    """Return a picture of mode L in radiological orientation (the patient's right or front on the left), and values.

    The values are the stored ones of the middle slice of the array, regardless of the slice shown, so that a ledger
    recognises the volume under other settings.

    Args:
        path: The volume.
        plane: Anatomical plane of the slice.
        view: Slice, counted from the left, the back or the feet, or a combination of all.
        window: Values that become black and white; None: the picture's own `percentiles`. NaN becomes black.
        percentiles: Percentiles of the values in the picture.

    Raises:
        InputError: the file cannot be used; the message does not contain the path.
    """
    from PIL import Image

    with _volume(path) as (volume, axes, rising):
        across = axes[PLANES.index(plane)]
        depth = volume.shape[across]
        if isinstance(view, int) and view >= depth:
            raise InputError(f"has {depth} {plane} slices, numbered from 0, so data.view={view} is out of range")
        place = depth // 2 if view == "middle" else view
        if isinstance(place, int) and not rising[across]:
            place = depth - 1 - place
        try:
            values = _flat(volume, across, place)
            stored = _flat(volume, 2, volume.shape[2] // 2)
        except Exception as error:  # gzip and nibabel raise errors of many types
            raise InputError("is damaged: its voxels cannot be read") from error
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise InputError("contains no finite number in the slice")
    low, high = (float(end) for end in window or np.percentile(finite, percentiles))
    first, second = (axis for axis in range(3) if axis != across)
    values = values[:: -1 if rising[first] else 1, :: -1 if rising[second] else 1]
    if axes.index(first) < axes.index(second):
        values = values.T
    return Image.fromarray(windowed(np.ascontiguousarray(values), low, high)), stored


def _flat(volume: Any, across: int, place: int | str) -> np.ndarray:
    """Return one slice across an axis, or the maximum or mean of all; one slice of the last axis is read at a time."""

    def slab(number: int) -> np.ndarray:
        one = [0] * (len(volume.shape) - 3)
        return np.asarray(volume.dataobj[(slice(None), slice(None), number, *one)], np.float64)

    slabs = map(slab, [place] if across == 2 and isinstance(place, int) else range(volume.shape[2]))
    if across == 2:
        combined = reduce(np.maximum if place == "max" else np.add, slabs)
        return combined / volume.shape[2] if place == "mean" else combined
    rows = (own.take(place, across) if isinstance(place, int) else getattr(own, place)(axis=across) for own in slabs)
    return np.stack(list(rows), axis=1)


@contextmanager
def _volume(path: Path) -> Iterator[tuple[Any, list[int], list[bool]]]:
    """Open a volume and check its header.

    Yields:
        The volume, the axis of its array for each of `PLANES`, and whether each axis rises towards the right, front or
        head.
    """
    with from_extra("medical", "NIfTI files"):
        from nibabel.orientations import io_orientation
    packed = path.name.lower().endswith(".gz")
    with (gzip.open if packed else open)(path, "rb") as file:
        try:
            volume = _header(file)
            orientation = None if volume is None else io_orientation(volume.affine)
        except Exception as error:
            raise InputError("is damaged: its header cannot be read") from error
        if volume is None or orientation is None:
            raise InputError("is not a NIfTI file")
        shape, kind = volume.shape, volume.get_data_dtype()
        if len(shape) < 3 or math.prod(shape[3:]) != 1 or kind.kind not in "iuf":
            raise InputError("is not a single volume of numbers: save one volume of a series, without colours")
        size = math.prod(shape) * kind.itemsize
        if min(shape) < 1 or size > MOST_BYTES or shape[0] * shape[1] * 8 > _MOST_READ:
            raise InputError(f"claims to have no voxels, or more than {MOST_BYTES / 2**30:g} GiB")
        if size + volume.dataobj.offset > path.stat().st_size * (_MOST_DEFLATED if packed else 1):
            raise InputError("is truncated, or claims more voxels than it contains")
        if not np.isfinite(orientation).all():
            raise InputError("does not contain the orientation of its axes")
        yield (
            volume,
            [orientation[:, 0].tolist().index(axis) for axis in range(3)],
            [direction > 0 for direction in orientation[:, 1]],
        )


def _header(file: Any) -> Any:
    from nibabel import Nifti1Image, Nifti2Image
    from nibabel.fileholders import FileHolder

    logging.getLogger("nibabel").setLevel(logging.CRITICAL + 1)
    kinds, head = {348: Nifti1Image, 540: Nifti2Image}, file.read(4)
    kind = kinds.get(int.from_bytes(head, "little")) or kinds.get(int.from_bytes(head, "big"))
    file.seek(0)
    if kind is None or b"n+" not in file.read(348):
        return None
    file.seek(0)
    holder = FileHolder(fileobj=_Bounded(file))  # type: ignore[arg-type]
    return kind.from_file_map({"image": holder, "header": holder})
