"""The user's own image files: class folders, or a CSV table that lists them.

Class folders           FOLDER/CLASS/anything.png                     split by test_fraction
Class folders, split    FOLDER/train/CLASS/..., FOLDER/test/CLASS/... the split as given
A table                 TABLE.csv with columns path, label and optionally group, party, split (train or test)

The name of a record (`terrine.data.units`) is the path of its file below its class folder, without the folder's own
name, since that is its label; or the path that the table gives, made normal (`a/./b.png` is `a/b.png`). Records are in
the order of their names, whatever the order of classes or of lines. Files of one name in two class folders
(`cats/001.png`, `dogs/001.png`) are one unit: they cannot be told apart but by their labels, so they stay together.

Paths in a table are relative to the table's folder and may not leave it, by an absolute path, by `..` or by a symbolic
link: a table from elsewhere must not make Terrine read other files of this machine. The same holds for links in class
folders.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from terrine.data.dataset import Dataset
from terrine.data.images import SUFFIXES
from terrine.data.labels import encode_groups, encode_labels
from terrine.data.parties import encode_parties
from terrine.data.sketch import sketch
from terrine.data.source import ImageSource, Own, Progress
from terrine.data.splits import split_units
from terrine.data.survey import Survey
from terrine.data.units import count_units, name_codes
from terrine.errors import InputError

_COLUMNS = ("path", "label", "group", "split", "party")

_HEADERS = 1_000
"""About as many files are opened to see their sizes and modes: less than a second's work."""


class _File(NamedTuple):
    """An image file and what is known of it; `group`, `split` and `party` are empty when not given, for all alike."""

    path: Path
    name: str
    label: str
    group: str = ""
    split: str = ""
    party: str = ""


class _Listing(NamedTuple):
    """The files in the order of their names, what is known of each, and which of them teach: no image was opened."""

    files: list[_File]
    labels: np.ndarray
    class_names: tuple[str, ...]
    names: np.ndarray
    groups: np.ndarray | None
    train: np.ndarray
    test: np.ndarray
    parties: np.ndarray | None
    party_names: tuple[str, ...]
    skipped: Counter[str]

    @property
    def units(self) -> np.ndarray:
        """What draws its side of the split: each file's group, or its name."""
        return self.names if self.groups is None else self.groups


class Folder(Own, ImageSource):
    """Image files in class folders, or listed by a CSV table.

    Classes are numbered in alphabetical order, or by value when all are integers. Unless the split is given,
    `test_fraction` of the groups, or of the names, is held out (`terrine.data.splits`). Memory: the result and a few
    pictures. An error names the file, or the line of the table, that cannot be used.
    """

    name: Literal["folder"] = "folder"

    def read(self, at: Path = Path(), seed: int = 0, progress: Progress | None = None) -> Dataset:
        from terrine.data.image_files import read_images

        there = self._listed(at, seed)
        train, test, labels = there.train, there.test, there.labels
        # Read in this order, the two splits are views of one array: the images exist once.
        digests = np.empty(len(train) + len(test), np.uint64)
        images = read_images(
            [there.files[index].path for index in np.concatenate([train, test])],
            size=self.size,
            channels=self.channels,
            progress=progress,
            digests=digests,
        )
        return Dataset(
            name=(at / self.path).stem,
            train_images=images[: len(train)],
            train_labels=labels[train],
            train_groups=None if there.groups is None else there.groups[train],
            test_images=images[len(train) :],
            test_labels=labels[test],
            class_names=there.class_names,
            train_parties=there.parties,
            party_names=there.party_names,
            train_names=there.names[train],
            test_units=there.units[test],
            sketch=sketch(digests),
        )

    def survey(self, at: Path = Path(), *, seed: int = 0) -> Survey:
        from terrine.data.image_files import headers

        there = self._listed(at, seed)
        train, test, classes = there.train, there.test, len(there.class_names)
        every = max(1, len(there.files) // _HEADERS)
        geometry = headers([file.path for file in there.files[::every]])
        return Survey(
            there.class_names,
            np.bincount(there.labels[train], minlength=classes),
            np.bincount(there.labels[test], minlength=classes),
            names=count_units(there.names[train]),
            groups=None
            if there.groups is None
            else (count_units(there.groups[train]), count_units(there.groups[test])),
            skipped=there.skipped,
            geometry=geometry,
            looked_at=geometry.total(),
        )

    def _listed(self, at: Path, seed: int) -> _Listing:
        """List the files and draw the split; no image is opened."""
        path = at / self.path
        files, skipped = (_read_table(path), Counter[str]()) if path.suffix.lower() == ".csv" else _walk(path)
        files.sort(key=lambda file: (file.name, file.label))
        first, where = files[0], str(path)
        class_names = _class_names([file.label for file in files])
        labels = encode_labels({"label": np.array([file.label for file in files])}, class_names, where)[0]["label"]
        names = name_codes(file.name for file in files)
        groups = None
        if first.group:
            groups = encode_groups({"group": np.array([file.group for file in files])}, where)["group"]
        units = names if groups is None else groups
        if first.split:
            in_test = np.array([file.split == "test" for file in files])
            train, test = np.flatnonzero(~in_test), np.flatnonzero(in_test)
            _check_split(train, test, groups, files, where)
        else:
            train, test = split_units(units, self.test_fraction, seed=seed)
        parties: np.ndarray | None = None
        party_names: tuple[str, ...] = ()
        if first.party:
            # Where the split is given, a party that has test images only is no party of the training data.
            known = train if first.split else np.arange(len(files))
            held, party_names = encode_parties({"party": np.array([files[index].party for index in known])}, where)
            parties = held["party"] if first.split else held["party"][train]
        return _Listing(files, labels, class_names, names, groups, train, test, parties, party_names, skipped)


def _walk(folder: Path) -> tuple[list[_File], Counter[str]]:
    """List class folders, or the class folders in `train` and `test` when these are the only folders.

    Returns the images, and how many files of which kind below the folder are none.
    """
    if folder.suffix == ".npz" and folder.is_file():
        raise InputError(f"{folder} is an .npz file. Set data.name=npz.")
    if not folder.is_dir():
        raise InputError(
            f"There is no folder {folder}. Point data.path at a folder with one subfolder per class, or at a CSV file "
            "with columns path and label."
        )
    tops = _subfolders(folder)
    splits = {top.name for top in tops} == {"train", "test"}
    class_folders = [(c, top.name) for top in tops for c in _subfolders(top)] if splits else [(c, "") for c in tops]
    if not class_folders:
        raise InputError(
            f"{folder} holds no class folders. Put the images of each class into a subfolder named after the class, or "
            "point data.path at a CSV file with columns path and label."
        )
    listing: list[_File] = []
    skipped = Counter(_kind_of_file(file.name) for file in folder.iterdir() if file.is_file())
    for class_folder, split in class_folders:
        real, before = class_folder.resolve(), len(listing)
        for entry in _files_below(class_folder):
            if not _is_image(entry):
                skipped[_kind_of_file(entry.name)] += 1
                continue
            name = Path(entry.path).relative_to(class_folder)
            # What is no link lies where it seems to; resolving every path would take longer than reading the images.
            linked = class_folder.is_symlink() or entry.is_symlink()
            path = _inside(folder, Path(entry.path), entry.path) if linked else real / name
            listing.append(_File(path, name.as_posix(), class_folder.name, split=split))
        if len(listing) == before:
            raise InputError(
                f"The class folder {class_folder} holds no image ({_suffixes_in(class_folder)}). Add images "
                f"({', '.join(SUFFIXES)}) or remove the folder."
            )
    return listing, skipped


def _files_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder, at any depth, by name; folders that are links are not entered."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(Path(entry.path))
            elif entry.is_file():
                yield entry


def _read_table(table: Path) -> list[_File]:
    """List the rows of a CSV file; every complaint names the line."""
    if not table.is_file():
        raise InputError(f"There is no file {table}. Point data.path at a CSV file with columns path and label.")
    listing = []
    lines: dict[Path, int] = {}
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True, skipinitialspace=True)
            columns = _check_columns(table, reader.fieldnames)
            for row in reader:
                place = f"{table}, line {reader.line_num}"
                values = _values(row, columns, place)
                path = _inside(table.parent, Path(values["path"]), place, relative=True)
                if path in lines:
                    raise InputError(
                        f"{place}: {values['path']} is listed in line {lines[path]} already. List it once."
                    )
                lines[path] = reader.line_num
                name = Path(os.path.normpath(values.pop("path"))).as_posix()
                listing.append(_File(path, name, **values))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{table} is no CSV file in UTF-8 ({error}). Save it as CSV, UTF-8, commas.") from error
    if not listing:
        raise InputError(f"{table} lists no images. Give one line per image below the line with the column names.")
    return listing


def _check_columns(table: Path, header: Sequence[str] | None) -> set[str]:
    columns = set(header or ())
    if not {"path", "label"} <= columns:
        raise InputError(
            f"{table} has the columns {', '.join(header or ()) or '(none)'}. Its first line must name path and label, "
            "and optionally group, party and split, separated by commas."
        )
    return columns & set(_COLUMNS)


def _values(row: Mapping[str | None, str | None], columns: set[str], place: str) -> dict[str, str]:
    """Return the stripped values of one row, none of them empty."""
    values = {column: (row[column] or "").strip() for column in columns}
    empty = sorted(column for column, value in values.items() if not value)
    if empty:
        remedy = " A record that stands alone gets a group of its own." if empty == ["group"] else ""
        raise InputError(f"{place} has no {' and no '.join(empty)}. Fill it in, or remove the line.{remedy}")
    if None in row:
        raise InputError(f"{place} has more values than columns. Put a text with a comma into double quotes.")
    if values.get("split", "train") not in ("train", "test"):
        raise InputError(f"{place} has split '{values['split']}'. It must be train or test.")
    return values


def _inside(folder: Path, path: Path, place: str, *, relative: bool = False) -> Path:
    """Return the real path of an image, after refusing one that is not a file inside `folder`.

    With `relative` the path is one that a table gives, relative to `folder`.
    """
    if relative and path.is_absolute():
        raise InputError(
            f"{place}: {path} is an absolute path. Write paths relative to the folder of the table, {folder}, and keep "
            "the images inside it."
        )
    try:
        real = (folder / path if relative else path).resolve()
        is_file = real.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name that is too long
        raise InputError(f"{place}: {path} is no usable path ({error}). Correct it or remove the line.") from error
    if not real.is_relative_to(folder.resolve()):
        raise InputError(
            f"{place}: {path} leads outside {folder}, to {real}. Copy the image into that folder; links and '..' that "
            "leave it are not followed."
        )
    if not is_file:
        raise InputError(f"{place}: there is no file {path} in {folder}. Correct the path or remove the line.")
    return real


def _check_split(
    train: np.ndarray, test: np.ndarray, groups: np.ndarray | None, files: list[_File], where: str
) -> None:
    if len(train) == 0 or len(test) == 0:
        raise InputError(
            f"{where}: the given split has {len(train)} training and {len(test)} test images. Each needs some; or "
            "leave the split out, and data.test_fraction of the records is held out."
        )
    if groups is not None:
        shared = train[np.isin(groups[train], groups[test])]
        if len(shared):
            raise InputError(
                f"{where}: group '{files[shared[0]].group}' is in train and in test ({len(shared)} training images "
                "are concerned). A person must be in one split only: move those images."
            )


def _class_names(labels: list[str]) -> tuple[str, ...]:
    """Return the distinct labels, in alphabetical order, or by value when all are integers."""
    distinct = sorted(set(labels))
    return tuple(sorted(distinct, key=int) if all(name.isdecimal() for name in distinct) else distinct)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _is_image(entry: os.DirEntry[str]) -> bool:
    return os.path.splitext(entry.name)[1].lower() in SUFFIXES and not entry.name.startswith(".")


def _kind_of_file(name: str) -> str:
    """Return the suffix of a file's name, or the name of one that has none or that systems leave behind."""
    suffix = os.path.splitext(name)[1].lower()
    return suffix if suffix and not name.startswith((".", "Thumbs")) else name


def _suffixes_in(folder: Path) -> str:
    suffixes = sorted({_kind_of_file(file.name) for file in _files_below(folder)})
    return f"it holds {', '.join(suffixes[:5])} files" if suffixes else "it is empty"
