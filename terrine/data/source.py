"""Sources of private data: their settings, and how to read them and count their records.

    >>> dataset = load_dataset("digits", size=8)
    >>> dataset.train_images.shape
    (1435, 1, 8, 8)

A new source is one file with a subclass of `ImageSource`, whose `read` returns a `Dataset`. The source's data are
private and need a budget, unless `terrine.data.public` lists its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from terrine.data import public
from terrine.data.content_digest import digests_of_images
from terrine.data.dataset import Dataset
from terrine.data.findings import are_names, counts_by_class
from terrine.data.images import Fit, resize, to_channels
from terrine.data.ordered import Scale
from terrine.data.pool import take_pool
from terrine.data.units import count_units
from terrine.geometry import Size, as_size
from terrine.settings import Kinds, Settings, SiteLocal, Unit


@dataclass(frozen=True, eq=False)
class Survey:
    """Counts and warnings about a dataset, before any training. Private.

    Attributes:
        class_names: K names.
        train: int64 [K], training records by class.
        test: int64 [K], test records by class.
        names: Number of distinct names of training records, the units of record-level privacy.
        groups: Number of distinct groups of training and of test records, or None.
        public: Number of records that their owner declares public, which are the queries.
        skipped: Number of files that are not images, by suffix or name.
        geometry: Number of images by width, height and mode among `inspected` files whose headers were read.
        firsts: First file of each mode.
        columns: Names of a table's columns by type.
        remarks: Warnings of the source.
        declared: Whether the classes were declared in advance, so that a class may have no records.
        doubts: Reasons against using the data, which stop a run unless it is forced.
        refusals: Reasons why a run will fail.
        several: Number of training and test records with findings; None if each record has one class.
        dataset: The data themselves, if they have been read.
    """

    class_names: tuple[str, ...]
    train: np.ndarray
    test: np.ndarray
    names: int
    groups: tuple[int, int] | None = None
    public: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    geometry: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    inspected: int = 0
    firsts: Mapping[str, Path] = field(default_factory=dict)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    declared: bool = False
    doubts: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    several: tuple[int, int] | None = None
    dataset: Dataset | None = None

    @property
    def records(self) -> tuple[int, int]:
        """Number of training and of test records."""
        return self.several or (int(self.train.sum()), int(self.test.sum()))

    def units(self, unit: str) -> int:
        """Return the number of units of privacy in the training data: groups, or names of records."""
        return self.names if unit == "record" or self.groups is None else self.groups[0]


def count_dataset(dataset: Dataset) -> Survey:
    """Return the counts of a dataset that has been read."""
    groups = None
    if dataset.train_groups is not None:
        held_out = 0 if dataset.test_groups is None else count_units(dataset.test_groups)
        groups = (count_units(dataset.train_groups), held_out)
    return Survey(
        dataset.class_names,
        counts_by_class(dataset.train_labels, dataset.classes),
        counts_by_class(dataset.test_labels, dataset.classes),
        names=count_units(dataset.record_names),
        groups=groups,
        public=0 if dataset.pool_images is None else len(dataset.pool_images),
        several=(len(dataset.train_labels), len(dataset.test_labels)) if dataset.several else None,
        remarks=dataset.remarks,
        declared=dataset.declared,
        dataset=dataset,
    )


Progress = Callable[[int, int], None]
"""Called with (files read, number of files)."""


def rising(window: tuple[float, float]) -> tuple[float, float]:
    """Return a window. Raise ValueError unless its first value is below the second."""
    if not window[0] < window[1]:
        raise ValueError(f"the first value, {window[0]:g}, must be below the second, {window[1]:g}")
    return window


Window = Annotated[tuple[float, float], AfterValidator(rising)]
"""Values that become black and white."""


def parse_size(value: Any) -> Size:
    """Return a setting as a size. Raise a pydantic error if the value is not a size."""
    pair = value if isinstance(value, list | tuple) else [value, value]
    whole = [
        int(side) if isinstance(side, str | float) and str(side).removesuffix(".0").isdigit() else side for side in pair
    ]
    if len(pair) != 2 or not all(type(side) is int and 8 <= side <= 320 for side in whole):
        raise PydanticCustomError(
            "size", "a side is a whole number greater than or equal to 8 and at most 320: give one, or [height, width]"
        )
    return as_size(whole)


class Source(Settings):
    """Source of a run's private records."""

    of_images: ClassVar[bool] = True
    one_label_a_name: ClassVar[bool] = False
    """True if all records of one name share a label, as frames of a file do."""

    name: str
    public_benchmark: bool = Field(None, validate_default=True)
    """The data are public: budgets may be unlimited and private figures may go to MLflow. null: true if `name` is a
    known benchmark (`terrine.data.public`) whose files have the published digests. false: treat it as private. true is
    an error for other data."""
    edition: str = Field("1", min_length=1)
    """Your name for this version of the data. Account, edition and settings identify a release. Releases about a new
    edition are charged again."""

    @field_validator("edition", mode="before")
    @classmethod
    def _edition_as_text(cls, value: Any) -> Any:
        return str(value) if type(value) is date else value  # YAML reads 2026-03-01 as a date

    @field_validator("public_benchmark", mode="before")
    @classmethod
    def _is_public_benchmark(cls, value: Any, info: ValidationInfo) -> Any:
        return public.is_public_benchmark(info.data.get("name", ""), cls) if value is None else value

    @model_validator(mode="after")
    def _nothing_else_is_public(self) -> Source:
        if self.public_benchmark and not public.is_public_benchmark(self.name, type(self)):
            raise ValueError(
                f"public_benchmark=true does not go with data.name={self.name}, which is not a known public benchmark. "
                "Leave it out, and set ledger.account and ledger.epsilon"
            )
        return self

    @property
    def several(self) -> tuple[str, ...]:
        """Findings that a record may have at once; empty if each record has one class."""
        return getattr(self, "findings", ())

    @property
    def scale(self) -> Scale | None:
        """Order of the classes, or None."""
        return None

    @property
    def has_public_records(self) -> bool:
        """True if some records are public and are used as queries."""
        return not self.of_images or getattr(self, "pool", None) is not None

    def finds_classes(self, at: Path = Path()) -> bool:
        """Return whether the classes are the labels that occur, because neither settings nor files declare them."""
        return False

    def files(self, at: Path) -> list[Path]:
        """Return the user's own files that contain the data; none for a benchmark."""
        return []

    def load(self, at: Path = Path(), *, seed: int = 0, progress: Progress | None = None) -> Dataset:
        """Return the private dataset, validated.

        Args:
            at: Base folder of relative paths.
            seed: Seed of splits that the data do not contain.
            progress: Called while image files are read.

        Raises:
            InputError: the data cannot be used.
        """
        raise NotImplementedError

    def survey(self, at: Path = Path(), *, seed: int = 0) -> Survey:
        """Return counts without decoding all images; arguments and errors are those of `load`."""
        return count_dataset(self.load(at, seed=seed))

    def check(self, run: Any) -> None:
        """Raise ValueError if the pool is not the query source, or private data have no budget or would be logged."""
        pool = getattr(self, "pool", None)
        if ("pool" in run.queries.sources) != (pool is not None):
            raise ValueError(
                f"queries.sources is {', '.join(run.queries.sources)} and data.pool is {pool}: the source `pool` are "
                "the public images of data.pool. Set both, or neither"
            )
        if self.public_benchmark:
            return
        why = "is not a public benchmark"
        if public.is_public_benchmark(self.name, type(self)):
            why = "is treated as private (data.public_benchmark=false)"
        if run.ledger.epsilon is None:
            raise ValueError(
                f"ledger.epsilon is missing: data.name={self.name} {why}, so the releases of all runs need a budget. "
                "Set ledger.epsilon"
            )
        if run.ledger.account is None:
            raise ValueError(
                f"ledger.account is missing: data.name={self.name} {why}, and all releases about the same people share "
                "one budget. Set ledger.account to a permanent name for these people's data"
            )
        if run.tracking.private_metrics:
            raise ValueError(
                f"tracking.private_metrics=true would log functions of private records: data.name={self.name} {why}. "
                "Remove it"
            )


class ImageSource(Source):
    """Source of images, which are resized to one size and number of channels."""

    size: Annotated[Size, BeforeValidator(parse_size), Unit("pixels")] = 28
    """Side to which all images are resized, from 8 to 320; or `[height, width]`."""
    channels: Literal[1, 3] = 1
    """Channels of all images: 1 (grey) or 3 (colour). Images are converted."""
    fit: Fit = "stretch"
    """Resizing of images with another aspect ratio: stretch, pad with black, or crop to the centre."""
    pool: Literal["validation", "test"] | None = None
    """Real images declared public, for the query source `pool`: the validation split or part of the test split.
    Private, pool and test images are disjoint."""
    pool_fraction: float = Field(0.7, gt=0, lt=1)
    """pool=test: share of the test split that is public, selected by name."""

    def read(self, at: Path = Path(), seed: int = 0, progress: Progress | None = None) -> Dataset:
        """Return the dataset with images in their stored size; arguments and errors are those of `load`.

        With `pool="validation"`, the validation split is the dataset's pool.
        """
        raise NotImplementedError

    def load(self, at: Path = Path(), *, seed: int = 0, progress: Progress | None = None) -> Dataset:
        def fitted(images: np.ndarray) -> np.ndarray:
            return to_channels(resize(images, self.size, self.fit), self.channels)

        dataset = self.read(at, seed, progress)
        given = dataset.pool_images
        pool = None if given is None else fitted(given)
        train, test = fitted(dataset.train_images), fitted(dataset.test_images)
        if not self.public_benchmark:
            dataset = replace(
                dataset,
                train_contents=_contents(dataset.train_contents, dataset.train_images, train),
                test_contents=_contents(dataset.test_contents, dataset.test_images, test),
                pool_contents=None if given is None or pool is None else _contents(None, given, pool),
            )
        dataset = replace(dataset, train_images=train, test_images=test, pool_images=pool)
        if self.pool is not None:
            dataset = take_pool(dataset, self.pool, self.pool_fraction, seed=seed)
        dataset.validate()
        return dataset


def _contents(known: np.ndarray | None, stored: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Return digests of images in their stored size (or the known ones) and in the run's size, uint64 [N, 2]."""
    native = digests_of_images(stored) if known is None else known[:, 0]
    return np.stack([native, digests_of_images(fitted)], axis=1)


class ThreeSplits(ImageSource):
    """Images with a validation split."""

    validation: Literal["keep", "drop"] = "keep"
    """Use of the validation split: keep adds it to the training records; drop ignores it, as in papers that count only
    the training split. `pool=validation` makes it public instead."""

    @property
    def validation_split(self) -> Literal["keep", "pool", "drop"]:
        """Use of the validation split."""
        return "pool" if self.pool == "validation" else self.validation

    @model_validator(mode="after")
    def _one_use(self) -> ThreeSplits:
        if self.pool == "validation" and self.validation == "drop":
            raise ValueError("validation=drop drops the split that pool=validation makes public. Remove one")
        return self


class Downloaded(Settings):
    """Settings of benchmarks with official files."""

    root: Annotated[Path, SiteLocal()] = Path("data/private/source")
    """Folder of the files of torchvision and MedMNIST."""
    download: bool = True
    """Download missing files to `root`."""


class Split(Settings):
    """Settings of sources that may lack a test split."""

    test_fraction: float = Field(0.2, gt=0, lt=1)
    """Share of records held out for evaluation if the source has no test split."""


class Own(Split):
    """Settings of sources with the user's own records."""

    path: Annotated[Path, SiteLocal()]
    """Your .npz file, image folder, CSV file or DICOMDIR, depending on `name`."""
    classes: tuple[str, ...] | None = Field(None, min_length=2)
    """Names of all classes in label order. In CSV files, labels are matched without regard to case, spaces and a final
    full stop, also for the `grades` of a table. null: the class folders, `class_names` of the .npz file, or the labels
    in the first run of the account and edition."""

    @field_validator("classes")
    @classmethod
    def _distinct_classes(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not are_names(value):
            raise ValueError(f"{list(value)} must be distinct names")
        return value

    def finds_classes(self, at: Path = Path()) -> bool:
        return not (self.classes or getattr(self, "findings", ()) or getattr(self, "scale", None))

    def files(self, at: Path) -> list[Path]:
        path = at / self.path
        return [file for file in path.rglob("*") if not file.is_dir()] if path.is_dir() else [path]


SOURCES = Kinds("data", Source, "terrine.data.sources", default="digits", key="name")


_NOT_RECORDS = {"name", "edition", "download", "public_benchmark"}
"""Source settings that do not determine the records or are recorded elsewhere."""


def load_dataset(
    name: str, at: Path = Path(), *, seed: int = 0, progress: Progress | None = None, **settings: Any
) -> Dataset:
    """Return the private dataset of a source, validated.

    Args:
        name: Name of a source in `terrine.data.sources` or a plugin: `digits`, `mnist`, `npz`, `folder`, ...
        at: Base folder of relative paths.
        seed: Seed of splits that the data do not contain.
        progress: Called with (files read, number of files) while image files are read.
        **settings: Settings of the source: `size`, `channels`, `path`, ...

    Returns:
        Training and test split, uint8 images [N, C, H, W] with int64 labels [N].

    Raises:
        SettingError: The name of the dataset is unknown.
        InputError: The data cannot be used.
    """
    source = SOURCES.of(name)(name=name, **settings)
    dataset = source.load(at, seed=seed, progress=progress)
    fields = type(source).model_fields.items()
    site_local = {key for key, field in fields if any(isinstance(mark, SiteLocal) for mark in field.metadata)}
    chosen = source.model_dump(mode="json", exclude=site_local | _NOT_RECORDS, exclude_defaults=True)
    return replace(
        dataset,
        public_benchmark=dataset.public_benchmark and source.public_benchmark,
        settings=chosen | ({"seed": seed} if seed else {}),
    )
