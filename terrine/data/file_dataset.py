"""Sources of image files that are listed first and decoded later, one by one: by class folder, CSV table or headers.

A source lists its records (`found`) and shows one of them as a picture (`picture`). What follows is the same for all:
records are put in the order of their names, classes numbered, the split drawn or taken as it is given.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from terrine.data.dataset import Dataset, taken
from terrine.data.findings import counts_by_class, on_combinations
from terrine.data.image_table import AND, Record, read_image_table
from terrine.data.labels import UnknownLabelError, declared_names, encode_groups, on_alike, on_alike_groups
from terrine.data.ordered import OrderedLabels, grades_of, numbers_of, on_clipped
from terrine.data.partition import encode_parties
from terrine.data.source import ImageSource, Own, Progress, Survey
from terrine.data.units import count_units, name_codes, split_units
from terrine.errors import InputError, some

if TYPE_CHECKING:
    from PIL import Image


_NONE_OF = "not one of data.classes=[{}]. Correct it, or add it there."
_HEADERS = 1_000
"""About as many files are opened to see their sizes and modes: less than a second's work."""
_DECODED = 200
"""Approximate number of files that are decoded in full: a truncated file has an intact header."""


class Listing(NamedTuple):
    """What a source lists.

    records   at least one
    skipped   files that are passed over, by kind
    geometry  records by width, height and mode; None: to be looked up in the files' headers
    remarks   sentences for the data's keeper
    classes   names of class folders, empty ones included; None: none are named beside the records
    """

    records: list[Record]
    skipped: Counter[str]
    geometry: Counter[tuple[int, int, str]] | None = None
    remarks: tuple[str, ...] = ()
    classes: frozenset[str] | None = None


class Indexed(NamedTuple):
    """The records in the order of their names, what is known of each, and which of them teach."""

    found: Listing
    labels: np.ndarray
    class_names: tuple[str, ...]
    names: np.ndarray
    groups: np.ndarray | None
    train: np.ndarray
    test: np.ndarray
    parties: np.ndarray | None
    party_names: tuple[str, ...]
    numbers: np.ndarray | None = None
    remarks: tuple[str, ...] = ()


class FileDataset(OrderedLabels, Own, ImageSource):
    """Image files of somebody's own.

    Classes are numbered in the order of `classes`, else alphabetically, or by value if all are integers. Unless the
    split is given, `test_fraction` of the groups, or of the names, is held out (`terrine.data.units`). Memory: the
    result and a few pictures. An error names the file, or the line of the table, that cannot be used.
    """

    @abstractmethod
    def found(self, at: Path) -> Listing:
        """List the records; `at` is where relative paths start. Raises InputError for files that cannot be used."""

    @abstractmethod
    def picture(self, record: Record) -> tuple[Image.Image, np.ndarray]:
        """Return a record as an upright picture of 8 bits, and the values that are stored, by which it is recognised.

        Raises InputError that says, without the path, what is wrong with the file.
        """

    def files(self, at: Path) -> list[Path]:
        files, path = super().files(at), at / self.path
        if path.suffix.lower() == ".csv":
            with contextlib.suppress(InputError):  # an unreadable table is still a file
                files += [record.path for record in read_image_table(path, self.findings)[0]]
        return files

    @property
    def limits(self) -> tuple[float, float] | None:
        """The values that become black and white, as numbers."""
        limits: tuple[float, float] | None = getattr(self, "window", None)
        return limits

    @property
    def passes_over(self) -> bool:
        """Whether files that cannot be decoded are left out."""
        return False

    def read(self, at: Path = Path(), seed: int = 0, progress: Progress | None = None) -> Dataset:
        from terrine.data.image_files import read_pictures

        there = self._listed(at, seed)
        # Read in this order, the two splits are views of one array: the images exist once.
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
            skip=self.passes_over,
        )
        kept = _settle_namesakes(images, kept, digests[: len(kept)], there.names[order], len(there.train))
        teaching = kept < len(there.train)
        count, train, test = int(teaching.sum()), order[kept[teaching]], order[kept[~teaching]]
        known = {"labels": there.labels, "names": there.names, "groups": there.groups}
        return Dataset(
            name=(at / self.path).stem,
            train_images=images[:count],
            test_images=images[count:],
            **taken("train", train, **known),
            **taken("test", test, numbers=there.numbers, **known),
            class_names=there.class_names,
            train_parties=None if there.parties is None else there.parties[kept[teaching]],
            party_names=there.party_names,
            train_contents=digests[:count, None],
            test_contents=digests[count : len(kept), None],
            named=True,
            scale=self.scale,
            declared=not (self.findings or self.finds_classes(at)),
        )

    def survey(self, at: Path = Path(), *, seed: int = 0) -> Survey:
        there = self._listed(at, seed)
        train, test, classes = there.train, there.test, len(there.class_names)
        records, geometry = there.found.records, there.found.geometry
        firsts, broken = dict[str, Path](), dict[Path, str]()
        from terrine.data.image_files import copies, headers, not_shown

        if geometry is None:
            every = max(1, len(records) // _HEADERS)
            geometry, firsts, broken = headers([record.path for record in records[::every]])
        looked_at = geometry.total() + len(broken)
        broken |= not_shown(records[:: max(1, len(records) // _DECODED)], self.picture)
        return Survey(
            there.class_names,
            counts_by_class(there.labels[train], classes),
            counts_by_class(there.labels[test], classes),
            names=count_units(there.names[train]),
            groups=None
            if there.groups is None
            else (count_units(there.groups[train]), count_units(there.groups[test])),
            skipped=there.found.skipped,
            geometry=geometry,
            firsts=firsts,
            looked_at=looked_at,
            remarks=(
                *there.found.remarks,
                *there.remarks,
                *_on_copies(copies([record.path for record in records])),
            ),
            refusals=() if self.passes_over else _on_broken(broken, looked_at),
            declared=not (self.findings or self.finds_classes(at)),
            doubts=on_combinations(there.class_names),
            several=(len(train), len(test)) if self.findings else None,
        )

    def _class_names(self, found: Listing) -> tuple[str, ...]:
        """Return the classes: declared ones, those of folders, or the labels that occur, in alphabetical order, or by
        value if all are integers."""
        if self.classes:
            foreign = sorted((found.classes or frozenset()) - {*self.classes})
            if foreign:
                why = _NONE_OF.format(", ".join(self.classes))
                raise UnknownLabelError(f"A class folder is called '{foreign[0]}'", foreign[0], why)
            return self.classes
        names = sorted({record.label for record in found.records} if found.classes is None else found.classes)
        return tuple(sorted(names, key=int) if all(name.isdecimal() for name in names) else names)

    def _listed(self, at: Path, seed: int) -> Indexed:
        """List the records and draw the split; no image is decoded."""
        found, where = self.found(at), str(at / self.path)
        records = found.records
        # Namesakes, as in folders of classes, get their places when they are read (`_settle_namesakes`).
        records.sort(key=lambda record: (record.name, record.label, record.frame))
        first = records[0]
        numbers: np.ndarray | None = None
        remarks: tuple[str, ...] = ()
        if self.scale is not None:
            class_names, texts = self.scale.names, [record.label for record in records]
            if self.bins:
                numbers, clipped = numbers_of(texts, self, lambda row: records[row].path)
                labels, remarks = self.scale.places(numbers), on_clipped(clipped, len(records))
            else:
                labels = grades_of(texts, self.scale, lambda row: records[row].path)
        elif class_names := self.findings:
            has = [record.label.split(AND) for record in records]
            labels = np.array([[name in own for name in class_names] for own in has], np.int64)
        else:
            class_names = self._class_names(found)
            labels = _numbered(records, class_names)
            remarks = on_alike(class_names)
        names = name_codes(record.name for record in records)
        groups = None
        if first.group:
            own_groups = [record.group for record in records]
            groups = encode_groups({"group": np.array(own_groups)}, where)["group"]
            remarks += on_alike_groups(own_groups)
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
            # Where the split is given, a party that has test images only is no party of the training data.
            known = train if first.split else np.arange(len(records))
            coded, party_names = encode_parties({"party": np.array([records[index].party for index in known])}, where)
            parties = coded["party"] if first.split else coded["party"][train]
        return Indexed(found, labels, class_names, names, groups, train, test, parties, party_names, numbers, remarks)


def _settle_namesakes(
    images: np.ndarray, kept: np.ndarray, digests: np.ndarray, names: np.ndarray, train: int
) -> np.ndarray:
    """Put records of one name, which lie side by side, in the order of their contents; return their numbers so.

    Until then they lie in the order of their classes. Where labels alone are protected a record that has another label
    has to keep its place: batches are cut by places. `images` and `digests` change in place; the first `train` of
    `names` teach.
    """
    own, teaching = names[kept], kept < train
    first = np.append(True, (own[1:] != own[:-1]) | (teaching[1:] != teaching[:-1]))
    run, ends = np.cumsum(first) - 1, np.append(np.flatnonzero(first), len(kept))
    # Images of one value have no digest; their value tells them apart.
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
            f"{where}: the given split has {len(train)} training and {len(test)} test images. Each needs some; or "
            "leave the split out, and data.test_fraction of the records is held out."
        )
    if groups is not None:
        shared = train[np.isin(groups[train], groups[test])]
        if len(shared):
            raise InputError(
                f"{where}: the group of {records[shared[0]].path} is in train and in test ({len(shared)} training "
                "images are concerned). A person must be in one split only: move those images."
            )


def _on_broken(broken: dict[Path, str], looked_at: int) -> tuple[str, ...]:
    """Return a sentence about the files that a run will refuse, of those that were looked at."""
    if not broken:
        return ()
    named = some([f"{path} ({reason})" for path, reason in broken.items()], 3)
    return (
        f"{len(broken)} of {looked_at:,} files that were looked at cannot be used, and a run will refuse them: "
        f"{named}. Repair them, or remove them from the data.",
    )


def _on_copies(sets: list[list[Path]]) -> tuple[str, ...]:
    """Return a sentence about files that are copies of others."""
    if not sets:
        return ()
    count = sum(len(own) - 1 for own in sets)
    one, other = sets[0][:2]
    return (
        f"{count:,} file{'s are exact copies of others' if count > 1 else ' is an exact copy of another'} under other "
        f"names, such as {other} of {one}. Each counts as a record, and ε is for one of them. Remove copies, or name "
        "the person in a group.",
    )


def _numbered(records: list[Record], names: Sequence[str]) -> np.ndarray:
    """Return the number of each record's class, int64 [N]. Raises UnknownLabelError."""
    number = {name: place for place, name in enumerate(names)}
    named = declared_names({record.label: None for record in records}, names)
    for record in records:
        if not named[record.label]:
            why = _NONE_OF.format(", ".join(names))
            raise UnknownLabelError(f"{record.path}: the label is '{record.label}'", record.label, why)
    return np.array([number[named[record.label]] for record in records], np.int64)
