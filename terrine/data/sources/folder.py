"""The user's own image files: class folders, or a CSV table that lists them.

Class folders           FOLDER/CLASS/anything.png                     split by test_fraction
Class folders, split    FOLDER/train/CLASS/..., FOLDER/test/CLASS/... the given split; images in val or validation join
                        train
A table                 TABLE.csv with columns path, label and optionally group, party, split (train or test)
A table of findings     With `data.findings`, one column per finding (1, 0 or empty) instead of label, or the findings
                        of an image in label, separated by `;` or `|`; other findings are ignored

The name of a record (`terrine.data.units`) is the normalised path in the table, or the path below the class folder. The
class folder is not part of the name, because it is the label. Records are sorted by name, regardless of classes and
lines. Files with the same name in two class folders (`cats/001.png`, `dogs/001.png`) are one unit: only their labels
distinguish them, so they stay together.

Paths in a table are relative to the table's folder and may not leave it by an absolute path, `..` or a symbolic link,
so that a table from elsewhere cannot make Terrine read other files. The same holds for links in class folders. A broken
link is an error, and so is a second name of a file: one record would count as two.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from terrine.data.file_dataset import FileDataset, Listing
from terrine.data.image_table import Record, inside, read_image_table
from terrine.data.images import MEDICAL, SUFFIXES, medical_suffix
from terrine.data.source import Window
from terrine.errors import InputError, some

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


_SPLITS = dict.fromkeys(("train", "training", "val", "valid", "validation"), "train") | {"test": "test"}
"""Split of a folder by its lower-case name."""
_OF_MACOS = "__MACOSX"
"""Folder that macOS adds to archives."""


class Folder(FileDataset):
    """Image files in class folders, or listed by a CSV table."""

    name: Literal["folder"] = "folder"
    window: Window | None = None
    """[low, high]: values shown as black and white. Required for images of more than 8 bits per pixel (PNG, TIFF);
    ignored for images of 8 bits."""

    def found(self, at: Path) -> Listing:
        path = at / self.path
        if path.suffix.lower() == ".csv":
            records, remarks = read_image_table(path, self.findings)
            for record in records:
                if (end := medical_suffix(record.path.name)) is not None:
                    raise InputError(
                        f"{record.path} is a {end} file: set data.name={MEDICAL[end]} (docs/your-own-images.md)."
                    )
            return Listing(records, Counter(), remarks=remarks)
        if self.findings:
            raise InputError(f"{path} is not a table: images in class folders have one class. List findings in a CSV.")
        records, skipped, classes = _walk(path)
        return Listing(records, skipped, remarks=_deeper_folders_warning(records), classes=classes)

    def finds_classes(self, at: Path = Path()) -> bool:
        return super().finds_classes(at) and (at / self.path).suffix.lower() == ".csv"

    def picture(self, record: Record) -> tuple[Image.Image, np.ndarray]:
        from terrine.data.image_files import open_picture

        return open_picture(record.path.read_bytes(), self.window)


def _walk(folder: Path) -> tuple[list[Record], Counter[str], frozenset[str]]:
    """Return the images in class folders, the number of other files by kind, and the names of all class folders."""
    if not folder.is_dir():
        what = f"{folder} is not a folder: unpack archives" if folder.is_file() else f"There is no folder {folder}"
        hint = " An .npz file needs data.name=npz." if folder.suffix == ".npz" else ""
        raise InputError(
            f"{what}. Point data.path at a folder with one subfolder per class, or at a CSV file with columns path and "
            f"label.{hint}"
        )
    class_folders = _class_folders(folder)
    if not class_folders:
        raise InputError(
            f"{folder} contains no class folders. Put the images of each class into a subfolder named after the class, "
            "or point data.path at a CSV file with columns path and label."
        )
    listing: list[Record] = []
    places: dict[Path, str] = {}
    left = [file for file in folder.iterdir() if file.is_file() or file.name == _OF_MACOS]
    skipped = Counter(_kind_of_file(file.name) for file in left)
    for class_folder, split in class_folders:
        if class_folder.name.encode(errors="replace").decode() != class_folder.name:
            raise InputError(f"The name of the class folder {str(class_folder)!a} is not UTF-8 text. Rename it.")
        real, before = class_folder.resolve(), len(listing)
        for entry in _files_below(class_folder):
            if entry.is_symlink() and os.path.isdir(entry.path):
                skipped["links to folders"] += 1
                continue
            if Path(entry.name).suffix.lower() not in SUFFIXES or entry.name.startswith("."):
                skipped[_kind_of_file(entry.name)] += 1
                continue
            name = Path(entry.path).relative_to(class_folder)
            # Resolve only links: resolving every path would take longer than reading the images.
            linked = class_folder.is_symlink() or entry.is_symlink()
            path = inside(folder, Path(entry.path), entry.path) if linked else real / name
            if (other := places.setdefault(path, entry.path)) != entry.path:
                raise InputError(
                    f"{other} and {entry.path} are one file, {path}, and would be two records of one person. Remove "
                    "the link."
                )
            listing.append(Record(path, name.as_posix(), class_folder.name, split=split))
        others = sorted({_kind_of_file(file.name) for file in _files_below(class_folder) if file.name[0] != "."})
        if len(listing) == before and others:
            raise InputError(
                f"The class folder {class_folder} contains no image, but {', '.join(others[:5])} files. Add images "
                f"({', '.join(SUFFIXES)}), or remove these files: an empty folder is a class without a record."
            )
    if not listing:
        raise InputError(f"The class folders of {folder} contain no image. Add images ({', '.join(SUFFIXES)}).")
    return listing, skipped, frozenset(class_folder.name for class_folder, _ in class_folders)


def _deeper_folders_warning(records: list[Record]) -> tuple[str, ...]:
    """Return a warning if all images of a class are in several folders below its own, whose names are ignored."""
    below: dict[str, set[str]] = {}
    for record in records:
        below.setdefault(record.label, set()).add(record.name.rpartition("/")[0].partition("/")[0])
    deeper = {label: sorted(folders) for label, folders in below.items() if len(folders) > 1 and "" not in folders}
    if not deeper:
        return ()
    label, folders = next(iter(deeper.items()))
    more = f" (likewise in {len(deeper) - 1} other classes)" if len(deeper) > 1 else ""
    return (
        f"All images of the class '{label}' are in folders below it, {some(folders, 3)}, whose names are not "
        f"read{more}. If these are the classes, point data.path at the folder that contains them; if they identify "
        "people, list the images in a CSV file with groups.",
    )


def _class_folders(folder: Path) -> list[tuple[Path, str]]:
    """Return the class folders and their splits.

    The splits are those of `train`, `test` and `val` if these are the only folders, and "" if one is to be drawn.
    Raises InputError if train or test is missing.
    """
    tops = _subfolders(folder)
    splits = [_SPLITS.get(top.name.lower(), "") for top in tops]
    if {*splits} == {"train", "test"}:
        return [(inside, split) for top, split in zip(tops, splits, strict=True) for inside in _subfolders(top)]
    if tops and all(splits) and all(map(_subfolders, tops)):
        raise InputError(
            f"{folder} contains {' and '.join(top.name for top in tops)}, but no folder "
            f"{'test' if 'test' not in splits else 'train'}. Add it, or point data.path at a folder of class folders."
        )
    return [(top, "") for top in tops]


def _files_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield files and links below a folder, at any depth and by name. Links are not followed."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(Path(entry.path))
            elif entry.is_symlink() or entry.is_file():
                yield entry


def _subfolders(folder: Path) -> list[Path]:
    entries = [entry for entry in sorted(folder.iterdir()) if entry.name != _OF_MACOS and entry.name[0] != "."]
    for entry in entries:
        if entry.is_symlink() and not os.path.exists(entry):
            raise InputError(f"{entry} is a broken link. Correct or remove it.")
    return [entry for entry in entries if entry.is_dir()]


def _kind_of_file(name: str) -> str:
    """Return the suffix of a file name, or the whole name for system files and files without a suffix."""
    suffix = os.path.splitext(name)[1].lower()
    return suffix if suffix and not name.startswith((".", "Thumbs")) else name
