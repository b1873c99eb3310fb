"""The ways to deal records to teachers, with their settings; `terrine.data.partition` has the arithmetic."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from terrine.data import partition as arithmetic
from terrine.data.dataset import Dataset
from terrine.data.parties import check_whole
from terrine.errors import InputError, SettingError
from terrine.settings import Automatic, Kinds, Settings, Unit


class Partition(Settings):
    """How records are dealt to teachers."""

    reads_labels: ClassVar[bool] = False
    """Whether exchanging one record may move others to another teacher."""

    kind: str
    teachers: Annotated[int, Unit("teachers"), Automatic(100)] = Field(100, ge=2)
    """How many teachers the records are dealt to."""

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        """Return the teacher of every record, int64 [records].

        `groups`, int64 [records] or None, are the units where groups are protected; else the names of records are.
        Raises SettingError or InputError when there are too few units for the teachers, or other parties than teachers.
        """
        raise NotImplementedError

    def check(self, run: Any) -> None:
        """Raise ValueError where it reads the labels of private data."""
        self.refuse_private(public=run.data.public_benchmark)

    def refuse_private(self, *, public: bool) -> None:
        """Raise SettingError where it reads labels, and anyone may not already read the data."""
        if self.reads_labels and not public:
            raise SettingError(
                f"partition.kind={self.kind} reads labels, so that one record can move others to another teacher, and "
                "no guarantee would hold. Use iid, or party where the data really lie with parties"
            )


class IIDPartition(Partition):
    """By a hash of each unit's own name."""

    kind: Literal["iid"] = "iid"

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return arithmetic.iid(dataset.records, self.teachers, names=dataset.record_names, groups=groups, seed=seed)


class DirichletPartition(Partition):
    """By label, imitating parties whose data differ (Hsu, Qi and Brown 2019)."""

    reads_labels: ClassVar[bool] = True

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(gt=0)
    """Concentration; the smaller, the fewer classes a teacher has."""

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return arithmetic.dirichlet(dataset.train_labels, self.teachers, self.alpha, groups=groups, seed=seed)


class SimilarityPartition(Partition):
    """By label: a share dealt at random, the rest sorted and cut (Karimireddy et al. 2020, section 7)."""

    reads_labels: ClassVar[bool] = True

    kind: Literal["similarity"] = "similarity"
    similarity: Annotated[float, Unit("per cent")] = Field(ge=0, le=100)
    """Percentage of the records dealt at random; the rest is sorted by label and cut."""

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return arithmetic.by_similarity(dataset.train_labels, self.teachers, self.similarity, groups=groups, seed=seed)


class PartyPartition(Partition):
    """As the data's own column says: every party is a teacher."""

    kind: Literal["party"] = "party"

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        parties, names = dataset.train_parties, dataset.party_names
        if parties is None:
            raise SettingError(
                f"partition.kind=party, but {dataset.name} does not say which party holds a record. Give every record "
                "a party (docs/components.md), or use partition.kind=iid."
            )
        if self.teachers != len(names):
            raise SettingError(
                f"partition.teachers is {self.teachers}, but {dataset.name} names {len(names)} parties, and with "
                f"partition.kind=party each is one teacher. Set partition.teachers={len(names)}."
            )
        if groups is not None:
            check_whole(groups, parties, names)
        return parties


PARTITIONS = Kinds("partition", Partition, default="iid")


@dataclass(frozen=True, eq=False)
class Parts:
    """The records of a dataset, dealt to teachers: private.

    assignment  int64 [records], the teacher of each record
    settings    how they were dealt
    unit        what sits in one part, and is protected: each record, or all records of a group
    seed        what they were dealt with
    proof       what `terrine.data.partition.check` found: counts, and that the parts are disjoint
    """

    assignment: np.ndarray
    settings: Partition
    unit: Literal["record", "group"]
    seed: int
    proof: dict[str, Any]

    @property
    def teachers(self) -> int:
        """How many teachers the records are dealt to."""
        return self.settings.teachers

    def describe(self) -> dict[str, Any]:
        """Return how they were dealt, as JSON values: public, and nothing about records."""
        return {**self.settings.model_dump(mode="json"), "unit": self.unit, "seed": self.seed}


def partition(
    data: Dataset, *, kind: str = "iid", unit: Literal["record", "group"] = "record", seed: int = 0, **settings: Any
) -> Parts:
    """Deal the records of a dataset to teachers, each record to exactly one.

    Args:
        kind: `iid`, `party`, or for public benchmarks `dirichlet` and `similarity`.
        unit: What is protected: a record, or all records of a group (a person).
        seed: Public; it deals a dataset alike on every machine.
        **settings: Those of the kind: `teachers`, `alpha`, `similarity`.

    Returns:
        The parts, proven to be disjoint and to cover the training records.

    Raises:
        SettingError: an unknown kind, more teachers than units, groups that the data do not have, or a kind that reads
            the labels of private data.
        InputError: groups that do not lie in one part.
    """
    dealt = PARTITIONS.of(kind)(kind=kind, **settings)
    dealt.refuse_private(public=data.public)
    groups = protected_groups(data, unit)
    assignment = dealt.deal(data, groups, seed)
    return Parts(assignment, dealt, unit, seed, arithmetic.check(assignment, dealt.teachers, groups))


def check_parts(parts: Parts, data: Dataset) -> None:
    """Raise InputError unless parts are what dealing these very data gives: theirs, by their names and groups."""
    groups = protected_groups(data, parts.unit)
    if not np.array_equal(parts.settings.deal(data, groups, parts.seed), parts.assignment):
        raise InputError(
            f"The parts are not those of {data.name}: dealt by its own names and groups, records fall to other "
            "teachers, and one unit could move several votes. Deal these data: partition(data, ...)."
        )


def protected_groups(dataset: Dataset, unit: str) -> np.ndarray | None:
    """Return the group of each record where groups are what is protected, else None.

    Exact copies of an image are not kept together: which records are copies depends on their content, and a partition
    that reads content can move other records when one of them is exchanged. Copies are counted in the dataset's
    manifest; data with several images of a person needs privacy.unit=group.

    Raises SettingError when groups are to be protected and the data has none.
    """
    refuse_no_groups(unit, dataset.train_groups)
    return None if unit == "record" else dataset.train_groups


def refuse_no_groups(unit: str, groups: object | None) -> None:
    """Raise SettingError where groups are to be protected and records have none."""
    if unit == "group" and groups is None:
        raise SettingError(
            "privacy.unit=group, but the data have no groups. Give every record a group (docs/your-own-images.md; of a "
            "table, name the column: data.group), or set privacy.unit=record."
        )
