"""NIfTI volumes (.nii, .nii.gz) that a CSV lists: one slice or projection of each becomes an image.

The CSV has the columns path and label, and possibly group (the subject), party and split; the rules for paths are those
of `terrine.data.pictures.table`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from terrine.data.pictures.listed import Found, Listed, Record
from terrine.data.pictures.table import on_columns, read_image_table
from terrine.data.source import Window
from terrine.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


class Nifti(Listed):
    """Volumes of somebody's own, listed by a CSV; what is learnt from is one picture of each."""

    name: Literal["nifti"] = "nifti"
    plane: Literal["sagittal", "coronal", "axial"] = "axial"
    """Which slices are looked at, or across which a projection is made: as the volume says that the patient lies."""
    view: Literal["middle", "max", "mean"] | Annotated[int, Field(ge=0)] = "middle"
    """The slice in the middle, the maximum or mean of all slices, or the slice of this number, counted from the
    patient's left, back or feet."""
    window: Window | None = None
    """[low, high]: the values that become black and white. null: the picture's own `percentiles`."""
    percentiles: Window = (1.0, 99.0)
    """Of the values in a picture, which become black and white where `window` is null."""

    @property
    def limits(self) -> tuple[float, float] | None:
        """The values that become black and white."""
        return self.window

    def found(self, at: Path) -> Found:
        from terrine.data.pictures.files import each_file
        from terrine.data.pictures.nifti_pixels import PLANES, shape_of

        records = read_image_table(at / self.path, self.findings)
        across = PLANES.index(self.plane)
        sizes: Counter[tuple[int, int, str]] = Counter()
        for number, shape in each_file(lambda record: shape_of(record.path), records):
            if isinstance(self.view, int) and self.view >= shape[across]:
                raise InputError(
                    f"{records[number].path} has {shape[across]} {self.plane} slices, and data.view={self.view} is "
                    "none of them, counted from 0. Choose a number that every volume has, or data.view=middle."
                )
            width, height = (length for axis, length in enumerate(shape) if axis != across)
            sizes[width, height, "L"] += 1
        return Found(records, Counter(), sizes, on_columns(at / self.path, self.findings))

    def picture(self, record: Record) -> tuple[Image.Image, np.ndarray]:
        from terrine.data.pictures.nifti_pixels import picture_of

        return picture_of(record.path, self.plane, self.view, self.window, self.percentiles)
