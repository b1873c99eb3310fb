"""What a student learns from, public images and released answers alone, and what a training returns."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from terrine.classifiers import Head
from terrine.errors import InputError
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.statistics import Statistics
from terrine.queries import Queries
from terrine.students.answers import ReleasedAnswers

Cache = Callable[[str, Callable[[], np.ndarray]], np.ndarray]
"""(what it is, how it is computed) -> the array, computed or kept from an earlier time."""


def no_cache(name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Compute it, whatever its name."""
    return compute()


@dataclass(frozen=True, eq=False)
class Material:
    """What a student learns from.

    pool: all public images that it may look at, answered or not; each is in one batch, and no batch has two sources.
    rows: int64 [answers], the number in the pool of each image that has an answer. answers: in the same order.
    backbone: the public backbone, which is never changed. statistics: with which batch statistics the student is
    trained and used. cache: keeps features of the frozen backbone, whose names say what they are.
    """

    pool: Queries
    rows: np.ndarray
    answers: ReleasedAnswers
    backbone: Backbone
    statistics: Statistics
    cache: Cache = no_cache

    def __post_init__(self) -> None:
        pool = self.pool
        covered = np.sort(np.concatenate(pool.batches)) if len(pool.batches) else np.empty(0, int)
        if len(pool.batches) != len(pool.sources) or not np.array_equal(covered, np.arange(len(pool))):
            raise InputError(
                f"The student's pool has {len(pool)} images, {len(pool.batches)} batches and {len(pool.sources)} "
                "sources. Every image belongs in one batch, and every batch to one source."
            )
        rows = np.asarray(self.rows)
        if rows.shape != (len(self.answers),) or len(rows) == 0:
            raise InputError(
                f"{len(self.answers)} released answers and image numbers of shape {rows.shape} do not fit together. "
                "Give one image per released answer, and at least one."
            )
        if rows.min() < 0 or rows.max() >= len(pool) or len(np.unique(rows)) != len(rows):
            raise InputError(
                f"Answers are about images {rows.min()} to {rows.max()}, some perhaps more than once, and the pool has "
                f"{len(pool)}."
            )

    def features(self, device: torch.device | str) -> np.ndarray:
        """Return the frozen backbone's features of all images, float32 [images, features], in the pool's batches."""
        return self.cache(
            "plain",
            lambda: features_in_batches(self.backbone, self.pool.images, self.pool.batches, self.statistics, device),
        )


@dataclass(frozen=True, eq=False)
class TrainedStudent:
    """A trained student. backbone: its own, or None where the public one was left as it was.

    record: what is worth telling about the training, JSON values computed from public and released data alone.
    """

    head: Head
    backbone: Backbone | None = None
    record: dict[str, Any] = field(default_factory=dict)
