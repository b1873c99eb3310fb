"""A validated private dataset: labelled images in two splits, with a description and a fingerprint.

Counts, duplicates and fingerprint are functions of private records. The description belongs in data/private/. The
fingerprint is keyed, so it does not reveal the images to anyone without the key.
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
from terrine.errors import InputError, some
from terrine.privacy.ledger.people import HELD_OUT, NO_NAME, PUBLIC, TAUGHT, People


class Labelled(NamedTuple):
    """Images, uint8 [N, C, H, W], or a table's rows, float32 [N, F], with labels, int64 [N] or [N, K]."""

    images: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, repr=False)
class Dataset:
    """Labelled images in a training split, for teachers, and a test split, for evaluation only.

    Attributes:
        train_images: uint8 [N, C, H, W]; for a table its rows, float32 [N, F].
        train_labels: int64 [N], classes 0..K-1; or int64 [N, K] of 0 and 1 for K findings.
        train_groups: int64 [N], code of each record's group (the person, who is then the unit of privacy), or None.
        test_images: uint8 [M, C, H, W], or float32 [M, F].
        test_labels: int64 [M] or [M, K].
        class_names: K distinct names of classes or findings.
        public_benchmark: Whether the source declares the data public. `terrine.data.public` must list the name as well.
        column_names: F names of a table's features; None for images.
        train_parties: int64 [N], 0..P-1, the party of each record, or None.
        party_names: P names.
        pool_images: uint8 [P, C, H, W] of images that their owner declares public (`terrine.data.pool`), or None.
        pool_labels: int64 [P], for evaluation only, or None.
        train_names: int64 [N], code of each record's name (`terrine.data.units`); None: positions are the names.
        test_names: int64 [M], likewise.
        test_groups: int64 [M], or None if the test records have no groups.
        train_contents: uint64 [N, 2], digests by which a ledger recognises records (`terrine.data.content_digest`);
            None for public data, which have no budget.
        test_contents, pool_contents: The same for test and pool records.
        pool_names, pool_groups: int64 [P] or None, likewise.
        named: Whether records have names other than their positions.
        content_columns: Columns of a table that the first digest covers.
        content_on: Function that returns the digests of a table's rows computed from other columns.
        scale: Order of the classes, declared in advance (`terrine.data.ordered`), or None.
        test_numbers: float64 [M], `test_labels` before binning, or None.
        remarks: Warnings about the labels for the data owner.
        declared: Whether settings, class folders or the file declare the classes, so that a class may have no records.
        settings: Public settings of the source that determine its records, as JSON values.
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
        access = "public" if self.public else "private"
        return (
            f"Dataset({self.name}: {self.records:,} records of {shape}, {len(self.test_images):,} test records, "
            f"{self.classes} classes: {access})"
        )

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
        """True if a record may have several findings (`terrine.data.findings`)."""
        return self.train_labels.ndim == 2

    def decided(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the predictions for probabilities [images, classes].

        A prediction is the most likely class, or the median of ordered classes, int64 [images]. With several findings,
        it is whether the probability of each is above one half, bool [images, findings].
        """
        if self.several:
            return probabilities > 0.5
        return np.asarray(probabilities.argmax(axis=1) if self.scale is None else self.scale.classes(probabilities))

    @property
    def public(self) -> bool:
        """True if the source declares the data public and `terrine.data.public` lists the name."""
        return self.public_benchmark and self.name in PUBLIC_BENCHMARKS

    @property
    def test(self) -> Labelled:
        """Test split: private, for evaluation only."""
        return Labelled(self.test_images, self.test_labels)

    def people(self, unit: str = "group", *, edition: str = "1", **settings: Any) -> People | None:
        """Return the digests by which a ledger recognises these records, or None for public data.

        Args:
            unit: Unit of privacy; groups are recognised only with `group`.
            edition: The operator's name of this version of the data.
            **settings: Settings that determine the public records.
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
        """Code of each training record's name, int64 [N]; without names, the code of its position."""
        return place_codes(self.records) if self.train_names is None else self.train_names

    @property
    def test_units(self) -> np.ndarray | None:
        """Groups of the test records, or else their names, int64 [M]; None if they have neither."""
        return self.test_names if self.test_groups is None else self.test_groups

    def with_classes(self, names: Sequence[str]) -> "Dataset":
        """Return the same records with their classes in another order.

        Raises:
            InputError: the names differ, or the classes are ordered.
        """
        places = class_places(self.class_names, names)
        if self.scale is not None and tuple(names) != self.class_names:
            raise InputError(
                f"{self.name}: the classes are ordered: {', '.join(self.class_names)}. Use the same order."
            )
        return replace(
            self,
            train_labels=places[self.train_labels],
            test_labels=places[self.test_labels],
            pool_labels=None if self.pool_labels is None else places[self.pool_labels],
            class_names=tuple(names),
            declared=True,
        )

    def validate(self) -> None:
        """Raise InputError if an array differs from the class docstring in dtype, shape, length or range."""
        check = self._check_images if self.column_names is None else self._check_rows
        check("train_images", self.train_images)
        check("test_images", self.test_images)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise InputError(
                f"{self.name}: train_images has shape {list(self.train_images.shape)} but test_images has shape "
                f"{list(self.test_images.shape)}. Channels, height and width must agree."
            )
        if len(self.class_names) < 2 or len(set(self.class_names)) != len(self.class_names):
            raise InputError(f"{self.name}: the classes {list(self.class_names)} must be at least two distinct names.")
        self._check_labels("train", self.train_labels, len(self.train_images))
        self._check_labels("test", self.test_labels, len(self.test_images))
        if self.pool_images is not None and self.pool_labels is not None:
            check("pool_images", self.pool_images)
            self._check_labels("pool", self.pool_labels, len(self.pool_images))
        if self.scale is None and not self.declared:
            counts = counts_by_class(self.train_labels, self.classes)
            if empty := [f"'{name}'" for name, count in zip(self.class_names, counts, strict=True) if count == 0]:
                raise InputError(
                    f"{self.name}: {len(empty)} of {self.classes} classes have no training records: {some(empty)}. Add "
                    "records, or merge or remove these classes. Only grades and bins may be empty."
                )
        for split, images in (("train", self.train_images), ("test", self.test_images)):
            for name in ("names", "groups", "parties"):
                if (values := getattr(self, f"{split}_{name}", None)) is not None:
                    self._check_vector(f"{split}_{name}", values, len(images))
        if self.test_numbers is not None and self.test_numbers.shape != (len(self.test_images),):
            raise InputError(f"{self.name}: test_numbers must contain one number per test image.")

    def describe(self) -> dict[str, Any]:
        """Return a JSON-able description: shape, counts per class and split, groups, shared names and duplicates.

        Private.
        """
        train_counts = counts_by_class(self.train_labels, self.classes)
        test_counts = counts_by_class(self.test_labels, self.classes)
        return {
            "name": self.name,
            "public_benchmark": self.public_benchmark,
            "shape": list(self.train_images.shape[1:]),
            **({} if self.scale is None else {"scale": self.scale.describe()}),
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
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
            raise InputError(
                f"{self.name}: {name} is {images.dtype} {list(images.shape)}; it must be uint8 [N, C, H, W] with C = 1 "
                "or 3 and at least one image and pixel."
            )

    def _check_rows(self, name: str, rows: np.ndarray) -> None:
        expected = len(self.column_names or ())
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != expected or len(rows) == 0:
            raise InputError(
                f"{self.name}: {name} is {rows.dtype} {list(rows.shape)}; a table of {expected} features has rows as "
                f"float32 [N, {expected}], at least one."
            )
        refuse_not_finite(rows, f"{self.name}: {name}")

    def _check_labels(self, split: str, labels: np.ndarray, images: int) -> None:
        if self.several:
            expected = (images, self.classes)
            if labels.dtype != np.int64 or labels.shape != expected or not np.isin(labels, (0, 1)).all():
                raise InputError(
                    f"{self.name}: {split}_labels is {labels.dtype} {list(labels.shape)}; for findings it must be "
                    f"int64 {list(expected)} of 0 and 1."
                )
            return
        self._check_vector(f"{split}_labels", labels, images)
        outside = np.flatnonzero((labels < 0) | (labels >= self.classes))
        if len(outside):
            raise InputError(
                f"{self.name}: {split}_labels[{outside[0]}] is {labels[outside[0]]}, outside 0..{self.classes - 1} "
                f"({len(outside)} such labels). Correct the labels, or name every class."
            )

    def _check_vector(self, name: str, values: np.ndarray, images: int) -> None:
        if values.dtype != np.int64 or values.shape != (images,):
            raise InputError(
                f"{self.name}: {name} is {values.dtype} {list(values.shape)}; it must be int64 [{images}], one value "
                "per image."
            )


def split_fields(split: str, rows: np.ndarray, **columns: np.ndarray | None) -> dict[str, Any]:
    """Return the rows of a split, by field name of `Dataset`: `train_images`, `train_labels`, ..."""
    return {f"{split}_{name}": None if values is None else values[rows] for name, values in columns.items()}


def split_records(
    images: np.ndarray,
    labels: np.ndarray,
    *,
    test_fraction: float,
    seed: int,
    names: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    parties: np.ndarray | None = None,
    numbers: np.ndarray | None = None,
    **fields: Any,
) -> Dataset:
    """Return a dataset of one set of N records, split by name or group (`terrine.data.units.split_units`).

    Args:
        images: uint8 [N, C, H, W].
        labels: int64 [N] or [N, K].
        test_fraction: Share of the names or groups that is held out.
        seed: Seed of the split.
        names: int64 [N]; None: a record is named by its position in `images`, even after the split.
        groups: int64 [N] or None; a group is held out as a whole.
        parties: int64 [N] or None, kept for training records.
        numbers: float64 [N], labels before binning, or None; kept for test records.
        **fields: Further fields of `Dataset`.
    """
    names = place_codes(len(images)) if names is None else names
    train, test = split_units(names if groups is None else groups, test_fraction, seed=seed)
    known = {"images": images, "labels": labels, "groups": groups, "names": names}
    return Dataset(
        **split_fields("train", train, **known, parties=parties),
        **split_fields("test", test, **known, numbers=numbers),
        **fields,
    )


def fingerprint(dataset: Dataset, key: bytes) -> str:
    """Return the HMAC-SHA256, as hex, of the dataset's arrays under `key`.

    The HMAC is equal on every machine for equal arrays, regardless of dataset and class names, and changes with any
    pixel, label, record name, group, order or split. Parties are not included: a budget belongs to records, regardless
    of who holds them. Without `key` it reveals nothing about the records.
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
