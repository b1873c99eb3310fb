"""What every kind of teacher is to the pipeline: something that learns from its own records, and votes.

Formal guarantees of every kind:
- A teacher is a function of its own records, its settings, the seed and its number. No other teacher's record enters
  it, not even through batch statistics, so one record touches one teacher and moves one vote.
- How many records other teachers have does not enter it either, not by a bit: no precision, shape, batch or order of
  its arithmetic follows from their numbers. Teachers are trained and vote one after the other, with two exceptions.
  `linear` (and heads of `averaged`) stacks teachers with equally many records on the CPU, in products that treat them
  one by one; `prompt` teachers share passes through a frozen network whose shapes are fixed by settings alone.
- On the CPU it is the same to the last bit however teachers are grouped into tasks and however many threads there are;
  a `prompt` teacher agrees with itself in another group within floating point.
- A teacher with fewer than `least` records, or fewer than its features need, is not trained and is no error
  (`terrine.teachers.untrained`): how many a teacher has decides about that teacher alone.
- Its state is arrays of numbers by name, so it travels as safetensors; nothing is pickled.
- Votes are cast on fixed batches of queries, which all teachers share, and touch no state.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from terrine.determinism.randomness import derive_seed
from terrine.errors import InputError
from terrine.queries import Queries
from terrine.teachers.features import PrivateFeatures

Arrays = dict[str, np.ndarray]
"""A teacher's state: arrays by name."""


@dataclass(frozen=True)
class Records:
    """What teachers learn from.

    inputs      features, or uint8 images [records, C, H, W], as the kind wants; a memory map will do. Features of a
                backbone are `PrivateFeatures` of this very assignment. A plain float32 array [records, features] is
                taken as `PrivateFeatures.of_rows`: whoever passes one says that no row depends on another record
    labels      int64 [records], 0 .. classes - 1; of several findings int64 [records, classes], 0 or 1
    assignment  int64 [records], the teacher of each record

    Raises InputError when arrays do not fit together, or features were computed for another assignment.
    """

    inputs: np.ndarray | PrivateFeatures
    labels: np.ndarray
    assignment: np.ndarray
    classes: int

    def __post_init__(self) -> None:
        records = (len(self.inputs),)
        if self.labels.shape not in (records, (*records, self.classes)) or self.assignment.shape != records:
            raise InputError(
                f"{len(self.inputs)} records, labels of shape {self.labels.shape} and an assignment of shape "
                f"{self.assignment.shape} do not fit together. Give one label and one teacher per record."
            )
        most = self.classes - 1 if self.labels.ndim == 1 else 1
        if len(self.labels) and not (self.labels.min() >= 0 and self.labels.max() <= most):
            raise InputError(f"labels run from {self.labels.min()} to {self.labels.max()}, outside 0..{most}.")
        if isinstance(self.inputs, PrivateFeatures):
            self.inputs.check(self.assignment)

    @property
    def values(self) -> np.ndarray:
        """What is learned from, as an array."""
        return self.inputs.rows if isinstance(self.inputs, PrivateFeatures) else self.inputs

    def enough(self, teachers: Sequence[int], least: int) -> list[int]:
        """Return those of `teachers` that have `least` records, and as many as their features need, in their order."""
        if isinstance(self.inputs, PrivateFeatures):
            least = max(least, self.inputs.least)
        counts = np.bincount(self.assignment, minlength=max(teachers, default=0) + 1)
        return [teacher for teacher in teachers if counts[teacher] >= least]

    def refuse_mixed_batches(self) -> None:
        """Raise InputError unless these are features that were computed teacher by teacher."""
        if not isinstance(self.inputs, PrivateFeatures) or self.inputs.partition is None:
            raise InputError(
                "These features of a backbone were not computed teacher by teacher: a batch may hold records of "
                "several teachers, and then one record touches all of them. Compute them with "
                "terrine.teachers.features.private_features under the assignment that teachers train under."
            )


class TeacherKind(Protocol):
    """What trains and votes: made by `Teachers.build` of a kind's settings.

    stacked: states of all teachers have equal shapes and are small, so they are kept in one file.
    block: teachers that vote together.
    least: records without which a teacher is not trained.
    """

    stacked: bool
    block: int

    @property
    def least(self) -> int:
        """See the class."""
        ...

    def train(
        self, records: Records, teachers: Sequence[int], *, seed: int, device: torch.device | str
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield (number, state) of each of the teachers, in their order, each trained on its own records.

        Teachers with too few records are passed over. They are to be asked for all the same: where teachers share a
        computation, it has a place for each that is asked for.
        """
        ...

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str) -> np.ndarray:
        """Return the class of every query by every teacher: unsigned integers [queries, teachers], smallest type.

        Where states are `stacked`, zeros take the place of a teacher that was not trained, and what comes out there is
        not its vote (`terrine.teachers.untrained`): the others' arithmetic has the same shapes with it and without.
        """
        ...


def rows_of(assignment: np.ndarray, teachers: Sequence[int]) -> list[np.ndarray]:
    """Return each teacher's record numbers, ascending. Raises InputError for a teacher without any record."""
    order = np.argsort(assignment, kind="stable")
    arranged = assignment[order]
    starts = np.searchsorted(arranged, teachers, side="left")
    ends = np.searchsorted(arranged, teachers, side="right")
    for teacher, start, end in zip(teachers, starts, ends, strict=True):
        if start == end:
            raise InputError(f"Teacher {teacher} has no record. Use fewer teachers, or another partition.")
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]


def teachers_missing_a_class(labels: np.ndarray, assignment: np.ndarray, teachers: int, classes: int) -> int:
    """Return how many teachers never saw a record of some class: allowed, and a private figure.

    labels int64 [records] in 0 .. classes - 1, assignment int64 [records] in 0 .. teachers - 1.
    """
    counts = np.bincount(assignment * classes + labels, minlength=teachers * classes)
    return int((counts.reshape(teachers, classes) == 0).any(axis=1).sum())


def vote_type(classes: int) -> np.dtype:
    """Return the smallest unsigned integer type that holds 0 .. classes - 1."""
    return np.min_scalar_type(max(classes - 1, 0))


def start_seed(seed: int, teacher: int, initialisation: str) -> int:
    """Return the seed of a teacher's initial weights: the run's if they are `shared`, one of its `own` otherwise.

    Both are public, so they cost no privacy. A shared start makes teachers agree more (Anonymous 2025, section 4).
    """
    return seed if initialisation == "shared" else derive_seed(seed, "own initialisation", teacher)
