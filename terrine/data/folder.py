"""The user's own image files: class folders, or a CSV table that lists them.

Class folders           FOLDER/CLASS/anything.png                     split by test_fraction
Class folders, split    FOLDER/train/CLASS/..., FOLDER/test/CLASS/... the split as given
A table                 TABLE.csv with columns path, label and optionally group, party, split (train or test)

Paths in a table are relative to the table's folder and may not leave it, by an absolute path, by `..` or by a symbolic
link: a table from elsewhere must not make Terrine read other files of this machine. The same holds for links in class
folders.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from terrine.data.dataset import Dataset
from terrine.data.image_files import SUFFIXES, Progress, read_images
from terrine.data.labels import encode_groups, encode_labels
from terrine.data.parties import encode_parties
from terrine.data.splits import split_records
from terrine.errors import InputError

DEFAULT_SIZE = 28

_COLUMNS = ("path", "label", "group", "split", "party")


@dataclass(frozen=True)
class _Listing:
    """The files of a dataset, and what is known of each; `groups`, `splits` and `parties` are empty when not given."""

    paths: list[Path]
    labels: list[str]
    groups: list[str]
    splits: list[str]
    parties: list[str]


def load(
    path: Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    label_blind: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Return the images under the folder `path`, or listed by the CSV file `path`; see the module docstring.

    Images become `size` × `size` (28) with `channels` (None: one when all files are grey, else three). Classes are
    numbered in alphabetical order, or by value when all are integers. Unless the split is given, `test_fraction` of
    the records is held out, with every group on one side, and stratified, or `label_blind`
    (`terrine.data.splits.by_place`). Memory: the result and a few pictures.

    Raises InputError that names the file, or the line of the table, that cannot be used.
    """
    listing = _read_table(path) if path.suffix.lower() == ".csv" else _walk(path)
    where = str(path)
    names = _class_names(listing.labels)
    labels = encode_labels({"label": np.array(listing.labels)}, names, where)[0]["label"]
    groups = encode_groups({"group": np.array(listing.groups)}, where)["group"] if listing.groups else None
    if listing.splits:
        in_test = np.array(listing.splits) == "test"
        train, test = np.flatnonzero(~in_test), np.flatnonzero(in_test)
        _check_split(train, test, groups, listing, where)
    else:
        # In class folders a place says the class; a table's line does not.
        called = None if path.suffix.lower() == ".csv" else [file.name for file in listing.paths]
        train, test = split_records(
            labels, test_fraction, groups=groups, names=called, label_blind=label_blind, seed=seed
        )
    parties, party_names = None, ()
    if listing.parties:
        # Where the split is given, a party that has test images only is no party of the training data.
        known = train if listing.splits else np.arange(len(labels))
        held, party_names = encode_parties({"party": np.array(listing.parties)[known]}, where)
        parties = held["party"] if listing.splits else held["party"][train]
    # Read in this order, the two splits are views of one array: the images exist once.
    order = np.concatenate([train, test])
    images = read_images(
        [listing.paths[index] for index in order],
        size=DEFAULT_SIZE if size is None else size,
        channels=channels,
        progress=progress,
    )
    return Dataset(
        name=path.stem,
        train_images=images[: len(train)],
        train_labels=labels[train],
        train_groups=None if groups is None else groups[train],
        test_images=images[len(train) :],
        test_labels=labels[test],
        class_names=names,
        train_parties=parties,
        party_names=party_names,
    )


def _walk(folder: Path) -> _Listing:
    """List class folders, or the class folders in `train` and `test` when these are the only folders."""
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
    listing = _Listing([], [], [], [], [])
    for class_folder, split in class_folders:
        files = sorted(file for file in class_folder.rglob("*") if _is_image(file))
        if not files:
            raise InputError(
                f"The class folder {class_folder} holds no image ({_suffixes_in(class_folder)}). Add images "
                f"({', '.join(SUFFIXES)}) or remove the folder."
            )
        for file in files:
            listing.paths.append(_inside(folder, file, str(file)))
            listing.labels.append(class_folder.name)
            if splits:
                listing.splits.append(split)
    return listing


def _read_table(table: Path) -> _Listing:
    """List the rows of a CSV file; every complaint names the line."""
    if not table.is_file():
        raise InputError(f"There is no file {table}. Point data.path at a CSV file with columns path and label.")
    listing = _Listing([], [], [], [], [])
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
                listing.paths.append(path)
                listing.labels.append(values["label"])
                if "group" in columns:
                    listing.groups.append(values["group"])
                if "party" in columns:
                    listing.parties.append(values["party"])
                if "split" in columns:
                    listing.splits.append(values["split"])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{table} is no CSV file in UTF-8 ({error}). Save it as CSV, UTF-8, commas.") from error
    if not listing.paths:
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


def _check_split(train: np.ndarray, test: np.ndarray, groups: np.ndarray | None, listing: _Listing, where: str) -> None:
    if len(train) == 0 or len(test) == 0:
        raise InputError(
            f"{where}: the given split has {len(train)} training and {len(test)} test images. Each needs some; or "
            "leave the split out, and data.test_fraction of the records is held out."
        )
    if groups is not None:
        shared = train[np.isin(groups[train], groups[test])]
        if len(shared):
            raise InputError(
                f"{where}: group '{listing.groups[shared[0]]}' is in train and in test ({len(shared)} training images "
                "are concerned). A person must be in one split only: move those images."
            )


def _class_names(labels: list[str]) -> tuple[str, ...]:
    """Return the distinct labels, in alphabetical order, or by value when all are integers."""
    distinct = sorted(set(labels))
    return tuple(sorted(distinct, key=int) if all(name.isdecimal() for name in distinct) else distinct)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()


def _suffixes_in(folder: Path) -> str:
    suffixes = sorted({file.suffix.lower() or file.name for file in folder.rglob("*") if file.is_file()})
    return f"it holds {', '.join(suffixes[:5])} files" if suffixes else "it is empty"
