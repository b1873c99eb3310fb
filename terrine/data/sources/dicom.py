"""DICOM files in a folder (with any names) or a DICOMDIR, and a CSV of labels.

The CSV identifies images by `sop`, `series` or `study`: the UID of an instance, or of a series or study whose images
all have the label. Optional columns are split and party. Files without a label are ignored.

The group of an image is its PatientID, so all images of a patient are one unit with `privacy.unit: group`. Patients of
different issuers with the same ID are one unit, which is safe. The name of an image is its UID in the CSV, regardless
of path and label. All images of a CSV row (frames, or images of a series or study) share the name, so a record is a row
of the CSV. Only codes of names and groups are stored (`terrine.data.units`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from terrine.data.file_dataset import FileDataset, Listing
from terrine.data.image_table import Record, inside, read_table
from terrine.data.source import rising
from terrine.errors import InputError
from terrine.settings import SiteLocal

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from terrine.data.dicom_images import Header

_KEYS = ("sop", "series", "study")
_OTHERS = re.compile(r"\.(?!dcm$|dicom$|ima$)[a-z][a-z0-9]{1,5}$", re.IGNORECASE)
"""Suffix of files that are not DICOM; names that are UIDs end in digits."""

WINDOWS = {
    "lung": (-600, 1500),
    "mediastinum": (40, 400),
    "soft-tissue": (50, 350),
    "abdomen": (60, 400),
    "liver": (60, 160),
    "bone": (400, 1800),
    "brain": (40, 80),
    "subdural": (75, 215),
    "stroke": (40, 40),
}
"""Centre and width of common CT windows in Hounsfield units."""


def window_limits(window: str) -> tuple[float, float] | None:
    """Return the values that a CT window shows as black and white, or None for an unknown name."""
    if window not in WINDOWS:
        return None
    centre, width = WINDOWS[window]
    return centre - width / 2, centre + width / 2


def _window(window: str | tuple[float, float] | None) -> str | tuple[float, float] | None:
    if isinstance(window, str) and window not in WINDOWS:
        raise ValueError(f"'{window}' is not a window: use {', '.join(WINDOWS)}, or [low, high]")
    return rising(window) if isinstance(window, tuple) else window


class Dicom(FileDataset):
    """DICOM images labelled by a CSV; patients are the groups."""

    one_label_a_name: ClassVar[bool] = True

    name: Literal["dicom"] = "dicom"
    labels: Annotated[Path, SiteLocal()]
    """CSV file with the columns `sop`, `series` or `study` (UIDs) and `label`, and optionally split and party."""
    window: Annotated[str | tuple[float, float] | None, AfterValidator(_window)] = None
    """Values shown as black and white: a CT window by name (lung, mediastinum, soft-tissue, abdomen, liver, bone,
    brain, subdural, stroke), or [low, high] after rescaling (Hounsfield units for CT). null: the window in each file,
    or else its minimum and maximum. Colour images are unchanged."""
    frames: Literal["first", "middle", "all"] = "middle"
    """Frames of multi-frame files: first, middle, or all as records with the same name and patient."""

    @property
    def limits(self) -> tuple[float, float] | None:
        return window_limits(self.window) if isinstance(self.window, str) else self.window

    def files(self, at: Path) -> list[Path]:
        path = at / self.path
        listed = [file for file in path.parent.rglob("*") if not file.is_dir()] if path.is_file() else super().files(at)
        return [*listed, at / self.labels]

    def found(self, at: Path) -> Listing:
        from terrine.data.dicom_images import read_header
        from terrine.data.image_files import each_file

        root = at / self.path
        paths, skipped = _in_directory(root) if root.is_file() else files_in(root)
        table = at / self.labels
        frame, _ = read_table(table, _KEYS, ("party", "split"), self.findings)
        key = next(name for name in _KEYS if name in frame)
        if frame[key].duplicated().any():
            line = frame.index[frame[key].duplicated()][0]
            raise InputError(f"{table}, line {line} repeats the {key} UID of an earlier line. List it once.")
        rows: dict[str, dict[str, Any]] = frame.set_index(key).to_dict("index")
        files = [Record(path, "", "") for path in paths]
        read = dict(each_file(lambda record: read_header(record.path), files, skip=self.skips))
        headers = [header for header in read.values() if header is not None]
        _refuse_twice(headers)
        labelled = [header for header in headers if getattr(header, key) in rows]
        for what, count in (
            ("DICOM files that cannot be used", len(paths) - len(read)),
            ("DICOM files without an image", len(read) - len(headers)),
            ("DICOM images without a label", len(headers) - len(labelled)),
        ):
            if count:
                skipped[what] += count
        used = {getattr(header, key) for header in labelled}
        unused = frame.index[~frame[key].isin(used)]
        if len(unused) and (not self.skips or not used):
            others = f" (likewise in {len(unused) - 1} other lines)" if len(unused) > 1 else ""
            raise InputError(f"{table}, line {unused[0]}: no image in {root} has this {key} UID{others}.")
        records: list[Record] = []
        for header in labelled:
            uid, first = getattr(header, key), header.frames // 2 if self.frames == "middle" else 0
            record = Record(header.path, uid, group=header.patient, **rows[uid])
            frames = range(header.frames) if self.frames == "all" else (first,)
            records += [record._replace(frame=frame) for frame in frames]
        return Listing(
            records,
            skipped,
            Counter((header.columns, header.rows, "L" if header.grey else "RGB") for header in labelled),
            tuple(_text_warnings(labelled)),
        )

    def picture(self, record: Record) -> tuple[Image.Image, np.ndarray]:
        from terrine.data.dicom_images import picture_at

        return picture_at(record.path, record.frame, self.limits)


def files_in(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Return files below a folder, at any depth, whose names may be those of DICOM files, and count the others."""
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}. Point data.path at a folder of DICOM files, or at a DICOMDIR.")
    paths, skipped = [], Counter[str]()
    for here, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(here, name)
            if name.startswith(".") or name.upper() == "DICOMDIR" or _OTHERS.search(name):
                skipped[path.suffix.lower() or name] += 1
            else:
                paths.append(inside(folder, path, str(path)) if path.is_symlink() else path)
    if not paths:
        raise InputError(f"{folder} contains no DICOM file. Point data.path at a folder of them, or at a DICOMDIR.")
    return paths, skipped


def _in_directory(path: Path) -> tuple[list[Path], Counter[str]]:
    """Return the images in a DICOMDIR, which must be inside its folder."""
    from terrine.data.dicom_images import list_directory

    entries = list_directory(path)
    if not entries:
        raise InputError(f"{path} lists no images. Use the folder of the files instead.")
    return [
        inside(path.parent, Path(*parts), f"{path}, image {number}", relative=True)
        for number, parts in enumerate(entries, 1)
    ], Counter()


def _refuse_twice(headers: list[Header]) -> None:
    first: dict[str, Header] = {}
    for header in headers:
        if (other := first.setdefault(header.sop, header)) is not header:
            raise InputError(
                f"{other.path} and {header.path} have the same SOPInstanceUID: remove one of them, or the link to it."
            )


def _text_warnings(headers: list[Header]) -> list[str]:
    burned, unknown = (sum(header.burned is marked for header in headers) for marked in (True, None))
    warnings = []
    if burned:
        warnings.append(f"{burned:,} images contain text (BurnedInAnnotation), which may identify people.")
    if unknown:
        warnings.append(
            f"{unknown:,} images of ultrasound or secondary capture may contain text (no BurnedInAnnotation). Check "
            "them for names."
        )
    return warnings
