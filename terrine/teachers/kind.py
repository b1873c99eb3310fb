"""What every kind of teacher is to the pipeline: something that learns from its own records, and votes.

Formal guarantees of every kind:
- A teacher is a function of its own records, its settings, the seed and its number. No other teacher's record enters
  it, not even through batch statistics, so one record touches one teacher and moves one vote.
- On the CPU it is the same to the last bit whichever teachers are trained with it, however they are grouped into tasks
  and however many threads there are. (`linear` stacks teachers in products that treat them one by one; the others are
  trained one teacher at a time, each by one thread.) `prompt` teachers share passes through a frozen network, and on an
  accelerator networks of equal shape are trained together: there a teacher agrees with itself in another group within
  floating point, and the values of another teacher's records still do not move a bit of it.
- Its state is arrays of numbers by name, so it travels as safetensors; nothing is pickled.
- Votes are cast on fixed batches of queries, which all teachers share, and touch no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from terrine.errors import InputError

Arrays = dict[str, np.ndarray]
"""A teacher's state: arrays by name."""


@dataclass(frozen=True)
class Records:
    """What teachers learn from.

    inputs      float32 [records, features] or uint8 images [records, C, H, W], as the kind wants; a memory map will do
    labels      int64 [records], 0 .. classes - 1
    assignment  int64 [records], the teacher of each record
    """

    inputs: np.ndarray
    labels: np.ndarray
    assignment: np.ndarray
    classes: int

    def __post_init__(self) -> None:
        if self.labels.shape != (len(self.inputs),) or self.assignment.shape != (len(self.inputs),):
            raise InputError(
                f"{len(self.inputs)} records, labels of shape {self.labels.shape} and an assignment of shape "
                f"{self.assignment.shape} do not fit together. Give one label and one teacher per record."
            )
        if len(self.labels) and not (self.labels.min() >= 0 and self.labels.max() < self.classes):
            raise InputError(
                f"labels run from {self.labels.min()} to {self.labels.max()}, outside 0..{self.classes - 1}."
            )


@dataclass(frozen=True)
class Queries:
    """What teachers are asked about: inputs of the kind's type, and the fixed batches (index arrays) they come in."""

    inputs: np.ndarray
    batches: Sequence[np.ndarray]


class TeacherKind(Protocol):
    """A kind of teacher with its settings.

    inputs: what it learns from, `features` of the frozen backbone (or a table's columns) or `images`.
    stacked: states of all teachers have equal shapes and are small, so they are kept in one file.
    block: teachers that vote together.
    """

    inputs: Literal["features", "images"]
    stacked: bool
    block: int

    def train(
        self, records: Records, teachers: Sequence[int], *, seed: int, device: torch.device | str
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield (number, state) of each of the teachers, in their order, each trained on its own records."""
        ...

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str) -> np.ndarray:
        """Return the class of every query by every teacher: unsigned integers [queries, teachers], smallest type."""
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
