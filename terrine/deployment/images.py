"""What a student accepts as images, or as rows of a table, and what it says about anything else."""

import numpy as np

from terrine.data.images import refuse_not_finite
from terrine.errors import InputError
from terrine.geometry import Size, sides


def check_images(images: np.ndarray, channels: int, size: Size) -> np.ndarray:
    """Return a batch of images as uint8 or float32 [B, channels, *size], contiguous, after checking it.

    images: uint8, 0 to 255, or floating point in [0, 1]. Raises InputError that says what is wrong: another dtype or
    shape, no image at all, NaN or an infinity, values outside the range.
    """
    height, width = sides(size)
    expected = f"[images, {channels}, {height}, {width}]"
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise InputError(
            f"The images have dtype {images.dtype}. Send uint8 values from 0 to 255, or floating point from 0 to 1."
        )
    if images.ndim != 4 or images.shape[1:] != (channels, height, width):
        raise InputError(
            f"The images have shape {list(images.shape)}, and this student takes {expected}: resize them, and give one "
            "image as a batch of one."
        )
    if len(images) == 0:
        raise InputError(f"There is no image in the batch. Send at least one, as {expected}.")
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    refuse_not_finite(images, "The batch")
    lowest, highest = images.min(), images.max()
    if lowest < 0 or highest > 1:
        raise InputError(
            f"Floating-point images must lie in [0, 1], and these have values from {lowest:g} to {highest:g}. Divide "
            "values from 0 to 255 by 255, or send them as uint8."
        )
    return np.ascontiguousarray(images, dtype=np.float32)


def check_rows(rows: np.ndarray, columns: int) -> np.ndarray:
    """Return rows of a table as float32 [B, columns], contiguous, after checking them.

    rows: floating point, encoded as the public rows of the student's training were. Raises InputError for another
    dtype or shape, for no row at all, and for NaN or an infinity.
    """
    if rows.dtype.kind != "f":
        raise InputError(
            f"The rows have dtype {rows.dtype}. Send floating point, encoded as the table's public rows were."
        )
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise InputError(f"The rows have shape {list(rows.shape)}, and this student takes [rows, {columns}].")
    if len(rows) == 0:
        raise InputError(f"There is no row in the batch. Send at least one, as [rows, {columns}].")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise InputError(f"Row {int(finite.argmin())} holds NaN or an infinity. Every value must be a finite number.")
    return np.ascontiguousarray(rows, dtype=np.float32)
