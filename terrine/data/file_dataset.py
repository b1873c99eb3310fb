"""Sources of image files: class folders, CSV tables or DICOM headers.

A source lists its records (`found`) and decodes one of them (`picture`). This base class sorts the records by name,
encodes classes, and draws the split or takes it from the data.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from terrine.data.dataset import Dataset, split_fields
from terrine.data.findings import AND, combined_findings, counts_by_class
from terrine.data.image_table import Record, read_image_table
from terrine.data.labels import UnknownLabelError, class_codes, class_name_warnings, similar_groups_warning
from terrine.data.ordered import OrderedLabels, clipping_warning, read_numbers
from terrine.data.partition import encode_parties
from terrine.data.source import ImageSource, Own, Progress, Survey
from terrine.data.units import count_units, name_codes, split_units
from terrine.errors import InputError, some

if TYPE_CHECKING:
    from PIL import Image

_HEADERS = 1_000
"""Approximate number of files whose size and mode are surveyed: less than a second."""
_DECODED = 200
"""Approximate number of files that are decoded in full: a truncated file has an intact header."""


class Listing(NamedTuple):
    """Records listed by a source.

    Attributes:
        records: The list has at least one record.
        skipped: Number of files that are ignored, by kind.
        geometry: Number of records by width, height and mode; None: read it from the files' headers.
        remarks: Warnings for the data owner.
        classes: Names of class folders, including empty ones, or None.
    """

    records: list[Record]
    skipped: Counter[str]
    geometry: Counter[tuple[int, int, str]] | None = None
    remarks: tuple[str, ...] = ()
    classes: frozenset[str] | None = None


class Indexed(NamedTuple):
    """Records sorted by name with their encoded columns, and the indices of those in each split."""

    found: Listing
    columns: dict[str, np.ndarray | None]
    class_names: tuple[str, ...]
    train: np.ndarray
    test: np.ndarray
    party_names: tuple[str, ...]
    remarks: tuple[str, ...] = ()


class FileDataset(OrderedLabels, Own, ImageSource):
    """The user's own image files.

    Classes are numbered in the order of `classes`, otherwise alphabetically, or by value if all are integers. If the
    data contain no split, `test_fraction` of the groups, or names, is held out (`terrine.data.units`). Memory use: the
    result and a few pictures. An error names the file or the line of the table.
    """

    unreadable: Literal["refuse", "skip"] = "refuse"
    """Files that cannot be used: refuse stops reading, skip ignores them."""

    @abstractmethod
    def found(self, at: Path) -> Listing:
        """List the records. Relative paths start at `at`. Raise InputError for files that cannot be used."""

    @abstractmethod
    def picture(self, record: Record) -> tuple[Image.Image, np.ndarray]:
        """Return a record as an upright 8-bit picture, and its stored values, by which a ledger recognises it.

        Raises:
            InputError: the file cannot be used; the message does not contain the path.
        """

    def files(self, at: Path) -> list[Path]:
        files, path = super().files(at), at / self.path
        if path.suffix.lower() == ".csv":
            with contextlib.suppress(InputError):  # an unreadable table is still a file
                files += [record.path for record in read_image_table(path, self.findings)[0]]
        return files

    @property
    def limits(self) -> tuple[float, float] | None:
        """Values that become black and white."""
        limits: tuple[float, float] | None = getattr(self, "window", None)
        return limits

    @property
    def skips(self) -> bool:
        """True if unreadable files are left out."""
        return self.unreadable == "skip"

    def read(self, at: Path = Path(), seed: int = 0, progress: Progress | None = None) -> Dataset:
        from terrine.data.image_files import read_pictures

        there = self._listed(at, seed)
        # In this order the two splits are views of one array: the images are stored once.
        order = np.concatenate([there.train, there.test])
        digests = np.empty(len(order), np.uint64)
        records = there.found.records
        images, kept = read_pictures(
            [records[index] for index in order],
            self.picture,
            size=self.size,
            channels=self.channels,
            fit=self.fit,
            progress=progress,
            digests=digests,
            skip=self.skips,
        )
        names = there.columns["names"]
        assert names is not None
        kept = _sort_same_names(images, kept, digests[: len(kept)], names[order], len(there.train))
        teaching = kept < len(there.train)
        count, train, test = int(teaching.sum()), order[kept[teaching]], order[kept[~teaching]]
        test_columns = {name: values for name, values in there.columns.items() if name != "parties"}
        train_columns = {name: values for name, values in there.columns.items() if name != "numbers"}
        return Dataset(
            name=(at / self.path).stem,
            train_images=images[:count],
            test_images=images[count:],
            **split_fields("train", train, **train_columns),
            **split_fields("test", test, **test_columns),
            class_names=there.class_names,
            party_names=there.party_names,
            train_contents=digests[:count, None],
            test_contents=digests[count : len(kept), None],
            named=True,
            scale=self.scale,
            declared=not (self.findings or self.finds_classes(at)),
        )

    def survey(self, at: Path = Path(), *, seed: int = 0) -> Survey:
        from terrine.data.image_files import copies, headers, undecodable

        there = self._listed(at, seed)
        train, test, classes = there.train, there.test, len(there.class_names)
        records, geometry = there.found.records, there.found.geometry
        labels, names, groups = (there.columns[name] for name in ("labels", "names", "groups"))
        assert labels is not None and names is not None  # noqa: PT018
        firsts, broken = dict[str, Path](), dict[Path, str]()
        if geometry is None:
            every = max(1, len(records) // _HEADERS)
            geometry, firsts, broken = headers([record.path for record in records[::every]])
        inspected = geometry.total() + len(broken)
        broken |= undecodable(records[:: max(1, len(records) // _DECODED)], self.picture)
        unusable = self._unusable(broken, inspected)
        return Survey(
            there.class_names,
            counts_by_class(labels[train], classes),
            counts_by_class(labels[test], classes),
            names=count_units(names[train]),
            groups=None if groups is None else (count_units(groups[train]), count_units(groups[test])),
            skipped=there.found.skipped,
            geometry=geometry,
            firsts=firsts,
            inspected=inspected,
            remarks=(
                *there.found.remarks,
                *there.remarks,
                *_copies_warning(copies([record.path for record in records])),
                *(unusable if self.skips else ()),
            ),
            refusals=() if self.skips else unusable,
            declared=not (self.findings or self.finds_classes(at)),
            doubts=combined_findings(there.class_names),
            several=(len(train), len(test)) if self.findings else None,
        )

    def _unusable(self, broken: dict[Path, str], inspected: int) -> tuple[str, ...]:
        """Return a sentence that names unusable files."""
        if not broken:
            return ()
        named = some([f"{path} ({reason})" for path, reason in broken.items()], 3)
        then = "are left out (data.unreadable=skip)" if self.skips else "make a run fail. Repair or remove them"
        return (f"{len(broken)} of {inspected:,} inspected files cannot be used and {then}: {named}.",)

    def _class_names(self, found: Listing) -> tuple[str, ...]:
        """Return the classes: declared ones, those of folders, or the labels that occur."""
        if self.classes:
            if foreign := sorted((found.classes or frozenset()) - {*self.classes}):
                why = f"not one of data.classes=[{', '.join(self.classes)}]. Correct it, or add it there."
                raise UnknownLabelError(f"A class folder is called '{foreign[0]}'", why)
            return self.classes
        names = sorted({record.label for record in found.records} if found.classes is None else found.classes)
        return tuple(sorted(names, key=int) if all(name.isdecimal() for name in names) else names)

    def _listed(self, at: Path, seed: int) -> Indexed:
        """List the records and draw the split; no image is decoded."""
        found, where = self.found(at), str(at / self.path)
        records = found.records
        # Records with the same name, as in class folders, are sorted by content when they are read.
        records.sort(key=lambda record: (record.name, record.label, record.frame))
        first = records[0]
        labels, class_names, numbers, remarks = self._labels(found)
        names = name_codes(record.name for record in records)
        groups = None
        if first.group:
            groups = name_codes(record.group for record in records)
            remarks += similar_groups_warning([record.group for record in records])
        units = names if groups is None else groups
        if first.split:
            in_test = np.array([record.split == "test" for record in records])
            train, test = np.flatnonzero(~in_test), np.flatnonzero(in_test)
            _check_split(train, test, groups, records, where)
        else:
            train, test = split_units(units, self.test_fraction, seed=seed)
        parties: np.ndarray | None = None
        party_names: tuple[str, ...] = ()
        if first.party:
            # With a given split, a party that has only test images does not belong to the training data.
            known = train if first.split else np.arange(len(records))
            coded, party_names = encode_parties({"party": np.array([records[index].party for index in known])}, where)
            parties = np.full(len(records), -1)
            parties[known] = coded["party"]
        columns = {"labels": labels, "names": names, "groups": groups, "parties": parties, "numbers": numbers}
        return Indexed(found, columns, class_names, train, test, party_names, remarks)

    def _labels(self, found: Listing) -> tuple[np.ndarray, tuple[str, ...], np.ndarray | None, tuple[str, ...]]:
        """Return the labels, the class names, the numbers before binning, and warnings."""
        texts = [record.label for record in found.records]

        def place(row: int) -> str:
            return str(found.records[row].path)

        if self.scale is not None and self.bins:
            numbers, clipped = read_numbers(texts, self, place)
            warnings = clipping_warning(clipped, len(texts))
            return self.scale.places(numbers), self.scale.names, numbers, warnings
        if self.findings:
            has = [text.split(AND) for text in texts]
            return np.array([[name in own for name in self.findings] for own in has], np.int64), self.findings, None, ()
        if self.grades:
            return class_codes(texts, self.grades, place, "data.grades"), self.grades, None, ()
        names = self._class_names(found)
        return class_codes(texts, names, place), names, None, class_name_warnings(names)


def _sort_same_names(
    images: np.ndarray, kept: np.ndarray, digests: np.ndarray, names: np.ndarray, train: int
) -> np.ndarray:
    """Sort records with the same name by content instead of class, and return their indices in this order.

    If only labels are protected, a record whose label changes must keep its position, which determines its batch.

    Args:
        images: uint8 [N, C, H, W]; changed in place.
        kept: Indices of the records that were read, int64 [N].
        digests: Content digests, uint64 [N]; changed in place.
        names: Name codes of all records; equal codes are adjacent.
        train: Number of training records, which come first.
    """
    own, teaching = names[kept], kept < train
    first = np.append(True, (own[1:] != own[:-1]) | (teaching[1:] != teaching[:-1]))
    run, ends = np.cumsum(first) - 1, np.append(np.flatnonzero(first), len(kept))
    # Images of a single value have the digest 0; that value distinguishes them.
    place = np.lexsort((images[: len(kept)].reshape(len(kept), -1)[:, 0], digests, run))
    for moved in np.unique(run[place != np.arange(len(kept))]):
        rows = slice(ends[moved], ends[moved + 1])
        images[rows], digests[rows] = images[place[rows]], digests[place[rows]]
    return kept[place]


def _check_split(
    train: np.ndarray, test: np.ndarray, groups: np.ndarray | None, records: list[Record], where: str
) -> None:
    if len(train) == 0 or len(test) == 0:
        raise InputError(
            f"{where}: the given split has {len(train)} training and {len(test)} test images, but both need some. "
            "Without a split, data.test_fraction of the records is held out."
        )
    if groups is not None:
        shared = train[np.isin(groups[train], groups[test])]
        if len(shared):
            raise InputError(
                f"{where}: the group of {records[shared[0]].path} is in train and in test ({len(shared)} such training "
                "images). A person must be in one split only: move those images."
            )


def _copies_warning(sets: list[list[Path]]) -> tuple[str, ...]:
    """Return a warning about files that are copies of others."""
    if not sets:
        return ()
    count = sum(len(own) - 1 for own in sets)
    one, other = sets[0][:2]
    return (
        f"{count:,} file{'s are exact copies of others' if count > 1 else ' is an exact copy of another'} under "
        f"{'other names' if count > 1 else 'another name'}, such as {other} of {one}. Each counts as a record. Remove "
        "copies; or protect groups, with all images of a person in one group.",
    )
