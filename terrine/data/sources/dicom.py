"""DICOM files as hospitals have them: a folder of any names, or a DICOMDIR, with a CSV of labels.

The CSV names images by `sop`, `series` or `study`: SOP instance UIDs, or those of series or studies, all of whose
images then have the label. Optional columns are split and party. Files without a label are passed over.

The group of an image is its PatientID, so all images of a patient are one unit under `privacy.unit: group`. Two
patients whose IDs are alike, from different issuers, are one unit, too, which is safe. The name of an image is the UID
that the CSV has its label by: neither path nor label has a part in it, and all that one row speaks of share it, frames
of a file, images of a series or study. So a record is what a row speaks of. Of the header nothing is kept but codes of
these two (`terrine.data.units`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from terrine.data.file_dataset import FileDataset, Listing
from terrine.data.image_table import Record, inside, read_table, values_of
from terrine.data.source import rising
from terrine.errors import InputError
from terrine.settings import AtHome

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from terrine.data.dicom_images import Header

_KEYS = ("sop", "series", "study")
_OTHERS = re.compile(r"\.(?!dcm$|dicom$|ima$)[a-z][a-z0-9]{1,5}$", re.IGNORECASE)
"""The end of a name that says that a file is something else; UIDs end in digits."""


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
"""Centre and width in Hounsfield units of the windows that CT is usually read in."""


def limits_of(window: str) -> tuple[float, float] | None:
    """Return the values that a window of CT shows as black and white; None for a name that none has."""
    if window not in WINDOWS:
        return None
    centre, width = WINDOWS[window]
    return centre - width / 2, centre + width / 2


def _window(window: str | tuple[float, float] | None) -> str | tuple[float, float] | None:
    if isinstance(window, str) and window not in WINDOWS:
        raise ValueError(f"'{window}' is no window: use {', '.join(WINDOWS)}, or [low, high]")
    return rising(window) if isinstance(window, tuple) else window


class Dicom(FileDataset):
    """DICOM images, labelled by a CSV; patients are the groups."""

    one_label_a_name: ClassVar[bool] = True

    name: Literal["dicom"] = "dicom"
    labels: Annotated[Path, AtHome()]
    """CSV file with the columns `sop`, `series` or `study` (UIDs) and `label`, and optionally split and party."""
    window: Annotated[str | tuple[float, float] | None, AfterValidator(_window)] = None
    """Values shown as black and white: a CT window by name (lung, mediastinum, soft-tissue, abdomen, liver, bone,
    brain, subdural, stroke), or [low, high] after rescaling (Hounsfield units for CT). null: the window in each file,
    or else its minimum and maximum. Colour images are unchanged."""
    frames: Literal["first", "middle", "all"] = "middle"
    """Frames of multi-frame files: first, middle, or all as records with the same name and patient."""
    unreadable: Literal["refuse", "skip"] = "refuse"
    """Files that cannot be used: refuse stops reading, skip ignores them."""

    @property
    def limits(self) -> tuple[float, float] | None:
        return limits_of(self.window) if isinstance(self.window, str) else self.window

    @property
    def passes_over(self) -> bool:
        return self.unreadable == "skip"

    def files(self, at: Path) -> list[Path]:
        path = at / self.path
        listed = [file for file in path.parent.rglob("*") if not file.is_dir()] if path.is_file() else super().files(at)
        return [*listed, at / self.labels]

    def found(self, at: Path) -> Listing:
        from terrine.data.dicom_images import read_header
        from terrine.data.image_files import each_file

        root = at / self.path
        paths, skipped = _in_directory(root) if root.is_file() else files_in(root)
        rows, key = _labels(at / self.labels, self.findings)
        files = [Record(path, "", "") for path in paths]
        read = dict(each_file(lambda record: read_header(record.path), files, skip=self.passes_over))
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
        unused = [place for uid, (place, _) in rows.items() if uid not in used]
        if unused and (not self.passes_over or not used):
            others = f", nor have {len(unused) - 1} others" if len(unused) > 1 else ""
            raise InputError(f"{unused[0]}: no image in {root} has this {key} UID{others}.")
        records: list[Record] = []
        for header in labelled:
            uid, first = getattr(header, key), header.frames // 2 if self.frames == "middle" else 0
            record = Record(header.path, uid, group=header.patient, **rows[uid][1])
            frames = range(header.frames) if self.frames == "all" else (first,)
            records += [record._replace(frame=frame) for frame in frames]
        return Listing(
            records,
            skipped,
            Counter((header.columns, header.rows, "L" if header.grey else "RGB") for header in labelled),
            tuple(_on_text(labelled)),
        )

    def picture(self, record: Record) -> tuple[Image.Image, np.ndarray]:
        from terrine.data.dicom_images import picture_at

        return picture_at(record.path, record.frame, self.limits)


def _labels(table: Path, findings: Sequence[str]) -> tuple[dict[str, tuple[str, dict[str, Any]]], str]:
    """Return the rows of the CSV by UID, each with its place, and the column that the UIDs are in."""
    rows: dict[str, tuple[str, dict[str, Any]]] = {}
    listed = read_table(table, _KEYS, ("party", "split"), findings)
    key = next(name for name in _KEYS if name in listed.header)
    for place, values in values_of(listed, table, _KEYS, ("party", "split"), findings):
        if (uid := values.pop(key)) in rows:
            raise InputError(f"{place} has the {key} UID of {rows[uid][0].rpartition(', ')[2]}. List it once.")
        rows[uid] = place, values
    return rows, key


def files_in(folder: Path) -> tuple[list[Path], Counter[str]]:
    """List the files below a folder, at any depth, that may be DICOM by their names, and count the others."""
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
        raise InputError(f"{folder} holds no DICOM file. Point data.path at a folder of DICOM files, or at a DICOMDIR.")
    return paths, skipped


def _in_directory(path: Path) -> tuple[list[Path], Counter[str]]:
    """List the images that a DICOMDIR names, which must lie in its folder."""
    from terrine.data.dicom_images import list_directory

    entries = list_directory(path)
    if not entries:
        raise InputError(f"{path} lists no images. Name the folder of the files instead.")
    return [
        inside(path.parent, Path(*parts), f"{path}, image {number}", relative=True)
        for number, parts in enumerate(entries, 1)
    ], Counter()


def _refuse_twice(headers: list[Header]) -> None:
    first: dict[str, Header] = {}
    for header in headers:
        if (other := first.setdefault(header.sop, header)) is not header:
            raise InputError(
                f"{other.path} and {header.path} are one image, or claim to be: remove one of them, or the link to it."
            )


def _on_text(headers: list[Header]) -> list[str]:
    burned, silent = (sum(header.burned is said for header in headers) for said in (True, None))
    remarks = []
    if burned:
        remarks.append(f"{burned:,} images say that text is burned into them (BurnedInAnnotation): it may name people.")
    if silent:
        remarks.append(
            f"{silent:,} images of ultrasound or secondary capture do not say whether text is burned into them "
            "(BurnedInAnnotation): look whether names are."
        )
    return remarks
