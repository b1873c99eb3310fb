"""A private dataset: labelled images in two splits, checked once, described and fingerprinted.

Everything a `Dataset` says about itself (counts, duplicates, fingerprint) is a function of private records. The
description belongs into data/private/; the fingerprint is keyed, so that whoever sees it without the key cannot test
whether a known set of images is behind it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from terrine.data.content_digest import digest_of_arrays, duplicate_counts, exact_duplicates, seen_images
from terrine.data.findings import counts_by_class
from terrine.data.images import refuse_not_finite
from terrine.data.labels import class_places
from terrine.data.ordered import Scale
from terrine.data.public import PUBLIC_BENCHMARKS
from terrine.data.units import count_units, place_codes, split_units
from terrine.errors import InputError
from terrine.privacy.ledger.people import HELD_OUT, NO_NAME, PUBLIC, TAUGHT, People


class Labelled(NamedTuple):
    """Images, uint8 [N, C, H, W] (or a table's rows, float32 [N, F]), with their labels, int64 [N] or [N, K]."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, repr=False)
class Dataset:
    """Labelled images in a training split, which teachers see, and a test split, which only evaluation sees.

    train_images    uint8 [N, C, H, W]
    train_labels    int64 [N], classes 0..K-1; or int64 [N, K], for each of K findings whether a record has it, 0 or 1
    train_names     int64 [N], the code of each record's name (`terrine.data.units`), or None: its place names it
    train_groups    int64 [N] or None, the code of each record's group; records of one group belong to one person, who
                    is then the unit of privacy
    test_images     uint8 [M, C, H, W]
    test_labels     int64 [M], or [M, K]
    test_names      int64 [M], the code of each test record's name, or None: its place names it
    test_groups     int64 [M], the code of each test record's group, or None: there are none, or the data do not say
    class_names     K distinct names, of classes or findings
    train_parties   int64 [N], 0..P-1, or None; which party holds a record, where the data say so
    party_names     P names of parties
    public_benchmark  whether its source says that anyone may read the data. That alone makes nothing public: the name
                    must be on the list in `terrine.data.public`, too
    column_names    None for images. For a table the names of its F features; train_images and test_images then hold its
                    rows, float32 [N, F] and [M, F]
    pool_images     uint8 [P, C, H, W] or None: images that their owner declares public (`terrine.data.pool`)
    pool_labels     int64 [P] or None: their labels, for evaluation alone
    train_contents  uint64 [N, 2], digests of each record's contents (`terrine.data.content_digest`), by which a ledger
                    recognises it; None for public data, which have no budget. Likewise test_contents and pool_contents
    pool_names      int64 [P], the code of each public record's name, or None; likewise pool_groups
    named           whether names of records are their own and not their places
    content_columns of a table: the columns that the first digest covers
    content_on      of a table: returns that digest of all rows (training, test, public) over other columns
    scale           the order of its classes, all of which were named beforehand (`terrine.data.ordered`), or None
    test_numbers    float64 [M] or None: where classes are bins, the numbers that test_labels are the bins of
    settings        what its source was told that decides what is in it, JSON values: public
    declared        whether settings, class folders or the file itself name the classes, so that some may be without
                    records; otherwise the names are the labels that occur
    remarks         what their source has to say about the labels, in sentences for the data's keeper
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    train_groups: np.ndarray | None
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    public_benchmark: bool = False
    column_names: tuple[str, ...] | None = None
    train_parties: np.ndarray | None = None
    party_names: tuple[str, ...] = ()
    pool_images: np.ndarray | None = None
    pool_labels: np.ndarray | None = None
    train_names: np.ndarray | None = None
    test_names: np.ndarray | None = None
    test_groups: np.ndarray | None = None
    train_contents: np.ndarray | None = None
    test_contents: np.ndarray | None = None
    pool_contents: np.ndarray | None = None
    pool_names: np.ndarray | None = None
    pool_groups: np.ndarray | None = None
    named: bool = False
    content_columns: tuple[str, ...] = ()
    content_on: Callable[[tuple[str, ...]], np.ndarray | None] | None = None
    scale: Scale | None = None
    test_numbers: np.ndarray | None = None
    remarks: tuple[str, ...] = ()
    declared: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.train_images.shape[1:]))
        tested = f"{len(self.test_images):,} to test by"
        whose = "public" if self.public else "private"
        return f"Dataset({self.name}: {self.records:,} records of {shape}, {tested}, {self.classes} classes: {whose})"

    @property
    def records(self) -> int:
        """Number of training records."""
        return len(self.train_images)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def several(self) -> bool:
        """Whether a record may have several findings at once (`terrine.data.findings`)."""
        return self.train_labels.ndim == 2

    def decided(self, said: np.ndarray) -> np.ndarray:
        """Return what probabilities [images, classes] say: the likeliest class, of those in an order the median, int64
        [images]; or which findings are likelier than not, bool [images, findings]."""
        if self.several:
            return said > 0.5
        return np.asarray(said.argmax(axis=1) if self.scale is None else self.scale.classes(said))

    @property
    def public(self) -> bool:
        """Whether anyone may already read it: its source says so, and its name is on the list of those that may."""
        return self.public_benchmark and self.name in PUBLIC_BENCHMARKS

    @property
    def test(self) -> Labelled:
        """The test split: private, and for evaluation alone."""
        return Labelled(self.test_images, self.test_labels)

    def people(self, unit: str = "group", *, edition: str = "1", **settings: Any) -> People | None:
        """Return the digests by which a ledger recognises these records, or None for public data.

        Args:
            unit: What is protected; groups are recognised only if it is `group`.
            edition: The operator's name of this version of the data.
            **settings: Those that decide which records are public.
        """
        if self.train_contents is None or self.test_contents is None:
            return None
        none = np.empty((0, self.train_contents.shape[1]), np.uint64)
        contents = [self.train_contents, self.test_contents, none if self.pool_contents is None else self.pool_contents]
        counts = [len(part) for part in contents]

        def joined(parts: Sequence[np.ndarray | None], wanted: bool) -> np.ndarray:
            blank = [np.full(count, NO_NAME, np.int64) for count in counts]
            return np.concatenate(
                [own if part is None or not wanted else part for part, own in zip(parts, blank, strict=True)]
            )

        return People(
            np.concatenate(contents),
            np.repeat(np.array([TAUGHT, HELD_OUT, PUBLIC], np.uint8), counts),
            joined([self.train_names, self.test_names, self.pool_names], self.named),
            joined([self.train_groups, self.test_groups, self.pool_groups], unit == "group"),
            self.content_columns,
            settings,
            edition,
            self.content_on,
        )

    @property
    def record_names(self) -> np.ndarray:
        """The code of each training record's name, int64 [N]; computed anew where only its place names a record."""
        return place_codes(self.records) if self.train_names is None else self.train_names

    @property
    def test_units(self) -> np.ndarray | None:
        """What belongs together in the test split, int64 [M]: groups, else names; None where places alone name it."""
        return self.test_names if self.test_groups is None else self.test_groups

    def with_classes(self, names: Sequence[str]) -> "Dataset":
        """Return the same records with labels by these names: their own classes in another order.

        The order of classes is an accident of their folders or codes, and says nothing. Raises InputError where the
        names are others.
        """
        places = class_places(self.class_names, names)
        if self.scale is not None and tuple(names) != self.class_names:
            raise InputError(f"{self.name}: {', '.join(self.class_names)} have this very order. Agree on it.")
        pool = None if self.pool_labels is None else places[self.pool_labels]
        return replace(
            self,
            train_labels=places[self.train_labels],
            test_labels=places[self.test_labels],
            pool_labels=pool,
            class_names=tuple(names),
            declared=True,
        )

    def validate(self) -> None:
        """Raise InputError when an array has another dtype, shape, length or range than the class docstring says."""
        check = self._check_images if self.column_names is None else self._check_rows
        check("train_images", self.train_images)
        check("test_images", self.test_images)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise InputError(
                f"{self.name}: train_images has shape {list(self.train_images.shape)} but test_images has shape "
                f"{list(self.test_images.shape)}. Channels, height and width must agree."
            )
        if len(self.class_names) < 2 or len(set(self.class_names)) != len(self.class_names):
            fault = "A name occurs twice" if len(self.class_names) > 1 else "At least two are needed"
            raise InputError(f"{self.name}: the classes are {list(self.class_names)}. {fault}.")
        self._check_labels("train", self.train_labels, self.train_images)
        self._check_labels("test", self.test_labels, self.test_images)
        if self.pool_images is not None and self.pool_labels is not None:
            check("pool_images", self.pool_images)
            self._check_labels("pool", self.pool_labels, self.pool_images)
        self._check_every_class()
        for split, names in (("train", ("names", "groups", "parties")), ("test", ("names", "groups"))):
            for name in names:
                if (values := getattr(self, f"{split}_{name}")) is not None:
                    self._check_vector(f"{split}_{name}", values, f"{split}_images", getattr(self, f"{split}_images"))
        if self.test_numbers is not None and self.test_numbers.shape != (len(self.test_images),):
            raise InputError(f"{self.name}: test_numbers must be one for each of {len(self.test_images)} test images.")

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description: shape, counts per class and split, groups, names that several records
        share, exact duplicates. Private."""
        train_counts = counts_by_class(self.train_labels, self.classes)
        test_counts = counts_by_class(self.test_labels, self.classes)
        return {
            "name": self.name,
            "public_benchmark": self.public_benchmark,
            "shape": list(self.train_images.shape[1:]),
            **({} if self.scale is None else {"scale": self.scale.described()}),
            **({} if self.column_names is None else {"columns": list(self.column_names)}),
            "records": {"train": len(self.train_images), "test": len(self.test_images)},
            "classes": {
                name: {"train": int(train), "test": int(test)}
                for name, train, test in zip(self.class_names, train_counts, test_counts, strict=True)
            },
            "groups": None if self.train_groups is None else count_units(self.train_groups),
            "shared_names": None if self.train_names is None else duplicate_counts(self.train_names),
            "exact_duplicates": {
                "train": duplicate_counts(exact_duplicates(self.train_images)),
                "test_images_seen_in_train": int(seen_images(self.train_images, self.test_images).sum()),
            },
        }

    def _check_images(self, name: str, images: np.ndarray) -> None:
        if images.dtype.kind == "f":
            refuse_not_finite(images, f"{self.name}: {name}")
        if images.dtype != np.uint8 or images.ndim != 4:
            raise InputError(
                f"{self.name}: {name} is {images.dtype} {list(images.shape)}; it must be uint8 [N, C, H, W]."
            )
        if images.shape[1] not in (1, 3) or 0 in images.shape:
            raise InputError(
                f"{self.name}: {name} has shape {list(images.shape)}; it must hold at least one image of "
                "1 or 3 channels and at least one pixel."
            )

    def _check_rows(self, name: str, rows: np.ndarray) -> None:
        expected = len(self.column_names or ())
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != expected or len(rows) == 0:
            raise InputError(
                f"{self.name}: {name} is {rows.dtype} {list(rows.shape)}; a table of {expected} features holds its "
                f"rows as float32 [N, {expected}], at least one."
            )
        refuse_not_finite(rows, f"{self.name}: {name}")

    def _check_labels(self, split: str, labels: np.ndarray, images: np.ndarray) -> None:
        if self.several:
            expected = (len(images), self.classes)
            if labels.dtype != np.int64 or labels.shape != expected or not np.isin(labels, (0, 1)).all():
                raise InputError(
                    f"{self.name}: {split}_labels is {labels.dtype} {list(labels.shape)}; of several findings it must "
                    f"be int64 {list(expected)} of 0 and 1, a column for each finding."
                )
            return
        self._check_vector(f"{split}_labels", labels, f"{split}_images", images)
        outside = np.flatnonzero((labels < 0) | (labels >= self.classes))
        if len(outside):
            raise InputError(
                f"{self.name}: {split}_labels[{outside[0]}] is {labels[outside[0]]}, outside 0..{self.classes - 1} "
                f"({len(outside)} such labels). Correct the labels, or name every class."
            )

    def _check_every_class(self) -> None:
        if self.scale is not None or self.declared:
            return  # named beforehand, whether there are such records or not
        counts = counts_by_class(self.train_labels, self.classes)
        empty = [name for name, count in zip(self.class_names, counts, strict=True) if count == 0]
        if empty:
            shown = ", ".join(f"'{name}'" for name in empty[:5]) + (", ..." if len(empty) > 5 else "")
            raise InputError(
                f"{self.name}: {len(empty)} of {self.classes} classes have no record to learn from: {shown}. "
                "No teacher can learn such a class: add records, merge it with another, or remove it. Grades, or bins "
                "of numbers, may be without records: data.grades, data.bins."
            )

    def _check_vector(self, name: str, values: np.ndarray, images_name: str, images: np.ndarray) -> None:
        if values.dtype != np.int64 or values.shape != (len(images),):
            raise InputError(
                f"{self.name}: {name} is {values.dtype} {list(values.shape)}, while {images_name} is "
                f"{list(images.shape)}; it must be int64 [{len(images)}], one value per image."
            )


def taken(split: str, rows: np.ndarray, **columns: np.ndarray | None) -> dict[str, Any]:
    """Return the rows of a split by the names of `Dataset`'s fields: `train_images`, `train_labels`, ..."""
    return {f"{split}_{name}": None if values is None else values[rows] for name, values in columns.items()}


def from_one_set(
    name: str,
    images: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray | None,
    class_names: tuple[str, ...],
    *,
    test_fraction: float,
    seed: int,
    public_benchmark: bool = False,
    record_names: np.ndarray | None = None,
    parties: np.ndarray | None = None,
    party_names: tuple[str, ...] = (),
    scale: Scale | None = None,
    numbers: np.ndarray | None = None,
    remarks: tuple[str, ...] = (),
    named: bool = False,
    declared: bool = False,
) -> Dataset:
    """Return the dataset of one set of records, uint8 [N, C, H, W] and int64 [N], split by `splits.split_units`.

    Groups are held out whole. Without `record_names`, int64 [N], the name of a record is its place in `images`: the
    places that remain in training are its names there. numbers: float64 [N], where labels are their bins on `scale`.
    declared: see `Dataset`.
    """
    own = place_codes(len(images)) if record_names is None else record_names
    units = own if groups is None else groups
    train, test = split_units(units, test_fraction, seed=seed)
    return Dataset(
        name=name,
        **taken("train", train, images=images, labels=labels, groups=groups, names=own, parties=parties),
        **taken("test", test, images=images, labels=labels, groups=groups, names=own, numbers=numbers),
        class_names=class_names,
        public_benchmark=public_benchmark,
        party_names=party_names,
        scale=scale,
        remarks=remarks,
        named=named,
        declared=declared,
    )


def fingerprint(dataset: Dataset, key: bytes) -> str:
    """Return the HMAC-SHA256, as hex, of the arrays of `dataset` under `key`.

    Equal arrays, of images or of a table's rows, give equal fingerprints on every machine, whatever the dataset or its
    classes are called; any other pixel, label, name, group, order or split gives another one. Which party holds a
    record has no part in it: a budget belongs to the records, whoever holds them. Without `key` it says nothing about
    the records.
    """
    table = dataset.column_names is not None
    records = "<f4" if table else "|u1"
    return digest_of_arrays(
        "terrine table 2" if table else "terrine dataset 2",
        {
            "train_images": (dataset.train_images, records),
            "train_labels": (dataset.train_labels, "<i8"),
            "train_names": (dataset.record_names, "<i8"),
            "train_groups": (dataset.train_groups, "<i8"),
            "test_images": (dataset.test_images, records),
            "test_labels": (dataset.test_labels, "<i8"),
            **({} if dataset.test_numbers is None else {"test_numbers": (dataset.test_numbers, "<f8")}),
        },
        key,
    )
