"""The ways to deal records to teachers, with their settings; `terrine.data.partition` has the arithmetic."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from terrine.data import partition
from terrine.data.dataset import Dataset
from terrine.data.parties import check_whole
from terrine.errors import SettingError
from terrine.settings import Kinds, Settings, Unit


class Partition(Settings):
    """How records are dealt to teachers."""

    reads_labels: ClassVar[bool] = False
    """Whether exchanging one record may move others to another teacher."""

    kind: str
    teachers: Annotated[int, Unit("teachers")] = Field(100, ge=2)
    """How many teachers the records are dealt to."""

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        """Return the teacher of every record, int64 [records].

        `groups`, int64 [records] or None, are the units where groups are protected; else the names of records are.
        Raises SettingError or InputError when there are too few units for the teachers, or other parties than teachers.
        """
        raise NotImplementedError

    def check(self, run: Any) -> None:
        """Raise ValueError where it reads the labels of private data."""
        if self.reads_labels and not run.data.public_benchmark:
            raise ValueError(
                f"partition.kind={self.kind} reads labels, so that one record can move others to another teacher, and "
                "no guarantee would hold. Use iid, or party where the data really lie with parties"
            )


class IIDPartition(Partition):
    """By a hash of each unit's own name."""

    kind: Literal["iid"] = "iid"

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return partition.iid(dataset.records, self.teachers, names=dataset.record_names, groups=groups, seed=seed)


class DirichletPartition(Partition):
    """By label, imitating parties whose data differ (Hsu, Qi and Brown 2019)."""

    reads_labels: ClassVar[bool] = True

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(gt=0)
    """Concentration; the smaller, the fewer classes a teacher has."""

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return partition.dirichlet(dataset.train_labels, self.teachers, self.alpha, groups=groups, seed=seed)


class SimilarityPartition(Partition):
    """By label: a share dealt at random, the rest sorted and cut (Karimireddy et al. 2020, section 7)."""

    reads_labels: ClassVar[bool] = True

    kind: Literal["similarity"] = "similarity"
    similarity: Annotated[float, Unit("per cent")] = Field(ge=0, le=100)
    """Percentage of the records dealt at random; the rest is sorted by label and cut."""

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        return partition.by_similarity(dataset.train_labels, self.teachers, self.similarity, groups=groups, seed=seed)


class PartyPartition(Partition):
    """As the data's own column says: every party is a teacher."""

    kind: Literal["party"] = "party"

    def deal(self, dataset: Dataset, groups: np.ndarray | None, seed: int) -> np.ndarray:
        parties, names = dataset.train_parties, dataset.party_names
        if parties is None:
            raise SettingError(
                f"partition.kind=party, but {dataset.name} does not say which party holds a record. Give every record "
                "a party (docs/partitions.md), or use partition.kind=iid."
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
