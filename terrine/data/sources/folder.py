"""The user's own image files: class folders, or a CSV table that lists them.

Class folders           FOLDER/CLASS/anything.png                     split by test_fraction
Class folders, split    FOLDER/train/CLASS/..., FOLDER/test/CLASS/... the split as given; images in a third folder,
                        val or validation, teach as well
A table                 TABLE.csv with columns path, label and optionally group, party, split (train or test)
A table of findings     With `data.findings`, instead of label a column for each finding (1, 0 or empty), or in label
                        the findings of an image, separated by `;` or `|`; what `data.findings` does not name is ignored

The name of a record (`terrine.data.units`) is the path of its file below its class folder, without the folder's own
name, since that is its label; or the path that the table gives, made normal (`a/./b.png` is `a/b.png`). Records are in
the order of their names, whatever the order of classes or of lines. Files of one name in two class folders
(`cats/001.png`, `dogs/001.png`) are one unit: they cannot be told apart but by their labels, so they stay together.

Paths in a table are relative to the table's folder and may not leave it, by an absolute path, by `..` or by a symbolic
link: a table from elsewhere must not make Terrine read other files of this machine. The same holds for links in class
folders. A link that leads to no file is refused, and so is a file under two names: one record would be two.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from terrine.data.file_dataset import FileDataset, Listing
from terrine.data.image_table import Record, inside, read_image_table
from terrine.data.images import MEDICAL, SUFFIXES, scanners_end
from terrine.data.source import Window
from terrine.errors import InputError, some

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "train",
    "valid": "train",
    "validation": "train",
    "test": "test",
}
"""The split that a folder is, by its name in small letters."""
_OF_MACOS = "__MACOSX"
"""The folder that macOS puts into archives beside what was packed."""


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
                if (end := scanners_end(record.path.name)) is not None:
                    raise InputError(
                        f"{record.path} is no picture, but {end} of a scanner: set data.name={MEDICAL[end]} "
                        "(docs/your-own-images.md says what its table looks like)."
                    )
            return Listing(records, Counter(), remarks=remarks)
        if self.findings:
            raise InputError(f"{path} is no table: an image in a class folder has one class. List findings in a CSV.")
        records, skipped, classes = _walk(path)
        return Listing(records, skipped, remarks=_on_folders_below(records), classes=classes)

    def finds_classes(self, at: Path = Path()) -> bool:
        return super().finds_classes(at) and (at / self.path).suffix.lower() == ".csv"

    def picture(self, record: Record) -> tuple[Image.Image, np.ndarray]:
        from terrine.data.image_files import open_picture

        return open_picture(record.path.read_bytes(), self.window)


def _walk(folder: Path) -> tuple[list[Record], Counter[str], frozenset[str]]:
    """Return the images in class folders, the number of other files by kind, and the names of all class folders."""
    if folder.suffix == ".npz" and folder.is_file():
        raise InputError(f"{folder} is an .npz file. Set data.name=npz.")
    if not folder.is_dir():
        what = f"{folder} is no folder: unpack an archive" if folder.is_file() else f"There is no folder {folder}"
        raise InputError(
            f"{what}. Point data.path at a folder with one subfolder per class, or at a CSV file "
            "with columns path and label."
        )
    class_folders = _class_folders(folder)
    if not class_folders:
        raise InputError(
            f"{folder} holds no class folders. Put the images of each class into a subfolder named after the class, or "
            "point data.path at a CSV file with columns path and label."
        )
    listing: list[Record] = []
    places: dict[Path, str] = {}
    left = [file for file in folder.iterdir() if file.is_file() or file.name == _OF_MACOS]
    skipped = Counter(_kind_of_file(file.name) for file in left)
    for class_folder, split in class_folders:
        if class_folder.name.encode(errors="replace").decode() != class_folder.name:  # a byte of it is no text
            raise InputError(f"The name of the class folder {str(class_folder)!a} is no UTF-8 text. Rename it.")
        real, before = class_folder.resolve(), len(listing)
        for entry in _files_below(class_folder):
            if entry.is_symlink() and os.path.isdir(entry.path):
                skipped["links to folders"] += 1
                continue
            if Path(entry.name).suffix.lower() not in SUFFIXES or entry.name.startswith("."):
                skipped[_kind_of_file(entry.name)] += 1
                continue
            name = Path(entry.path).relative_to(class_folder)
            # What is no link lies where it seems to; resolving every path would take longer than reading the images.
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
                f"The class folder {class_folder} holds no image (it holds {', '.join(others[:5])} files). Add images "
                f"({', '.join(SUFFIXES)}), or remove these files: an empty folder is a class without a record."
            )
    if not listing:
        raise InputError(f"The class folders of {folder} hold no image. Add images ({', '.join(SUFFIXES)}).")
    return listing, skipped, frozenset(class_folder.name for class_folder, _ in class_folders)


def _on_folders_below(records: list[Record]) -> tuple[str, ...]:
    """Say of which class all images lie in several folders below its own, whose names are not read."""
    below: dict[str, set[str]] = {}
    for record in records:
        below.setdefault(record.label, set()).add(record.name.rpartition("/")[0].partition("/")[0])
    deeper = {label: sorted(folders) for label, folders in below.items() if len(folders) > 1 and "" not in folders}
    if not deeper:
        return ()
    label, folders = next(iter(deeper.items()))
    more = f", and so it is with {len(deeper) - 1} other classes" if len(deeper) > 1 else ""
    return (
        f"All images of the class '{label}' lie in folders below it, {some(folders, 3)}, whose names are not "
        f"read{more}. If these are the classes, point data.path at the folder that holds them; if they say whose the "
        "images are, list the images in a CSV file with groups.",
    )


def _class_folders(folder: Path) -> list[tuple[Path, str]]:
    """Return the class folders, and the split that each is given in, "" where it is to be drawn: those in `train`,
    `test` and `val` when these are the only folders. Raises InputError where a split is missing."""
    tops = _subfolders(folder)
    splits = [_SPLITS.get(top.name.lower(), "") for top in tops]
    if {*splits} == {"train", "test"}:
        return [(inside, split) for top, split in zip(tops, splits, strict=True) for inside in _subfolders(top)]
    if tops and all(splits) and all(map(_subfolders, tops)):
        raise InputError(
            f"{folder} holds {' and '.join(top.name for top in tops)}, and no split for the "
            f"{'test' if 'test' not in splits else 'training'}: name the folders train and test, or point data.path at "
            "one that holds a folder for each class."
        )
    return [(top, "") for top in tops]


def _files_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder, at any depth, by name, and links, whatever they lead to: none is entered."""
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
            raise InputError(f"{entry} is a link that leads nowhere. Mend it, or remove it.")
    return [entry for entry in entries if entry.is_dir()]


def _kind_of_file(name: str) -> str:
    """Return the suffix of a file's name, or the name of one that has none or that systems leave behind."""
    suffix = os.path.splitext(name)[1].lower()
    return suffix if suffix and not name.startswith((".", "Thumbs")) else name
