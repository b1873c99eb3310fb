"""What there is before anything is read: records by class and split, units, and files that are passed over. Private."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from terrine.data.dataset import Dataset
from terrine.data.findings import counts_by_class
from terrine.data.units import count_units


@dataclass(frozen=True, eq=False)
class Survey:
    """Counts of a dataset, for its keeper alone.

    class_names  K names
    train        int64 [K], training records by class
    test         int64 [K], test records by class
    names        distinct names of training records: the units where records are protected
    groups       distinct groups of training records, and of test records; None where records have none
    public       records that their owner declares public, and asks about
    skipped      files that are no images, by suffix or name
    dataset      the data themselves, if they were read
    several      training and test records, where one may have several findings, or none; None where each has a class
    geometry     images by width, height and mode, of `looked_at` files whose headers were read
    firsts       the first of these files of each mode
    columns      names of a table's columns, by what they are taken for
    remarks      what their source has to say about the files, in sentences
    declared     whether classes were named beforehand, so that of some there may be no record
    doubts       what speaks against using them as they are, in sentences
    refusals     what a run will refuse, in sentences
    """

    class_names: tuple[str, ...]
    train: np.ndarray
    test: np.ndarray
    names: int
    groups: tuple[int, int] | None = None
    public: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    geometry: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    looked_at: int = 0
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
        """How many training records there are, and test records."""
        return self.several or (int(self.train.sum()), int(self.test.sum()))

    def units(self, unit: str) -> int:
        """Return how many units teachers learn from: groups, or names of records."""
        return self.names if unit == "record" or self.groups is None else self.groups[0]


def survey_of(dataset: Dataset) -> Survey:
    """Return the counts of a dataset that was read."""

    def by_class(labels: np.ndarray) -> np.ndarray:
        return counts_by_class(labels, dataset.classes)

    groups = None
    if dataset.train_groups is not None:
        held_out = 0 if dataset.test_groups is None else count_units(dataset.test_groups)
        groups = (count_units(dataset.train_groups), held_out)
    return Survey(
        dataset.class_names,
        by_class(dataset.train_labels),
        by_class(dataset.test_labels),
        names=count_units(dataset.record_names),
        groups=groups,
        public=0 if dataset.pool_images is None else len(dataset.pool_images),
        several=(len(dataset.train_labels), len(dataset.test_labels)) if dataset.several else None,
        remarks=dataset.remarks,
        declared=dataset.declared,
        dataset=dataset,
    )
