"""Features of private records, and the rule that the guarantee rests on: no batch mixes two teachers' records.

Under current statistics a feature depends on all images of its batch (`terrine.models.statistics`). Were records of two
teachers in one batch, one record would touch both, could move all votes, and what is charged for one vote would be far
too little. So the features of records are made in one place, teacher by teacher, and they remember under which
partition:

    features = private_features(backbone, images, assignment, "current", most=500)
    heads = train_heads(features, labels, assignment, teachers, classes, seed=0)     # refused under another partition

Guarantee: a record's features are a function of the records of its own part, the backbone, `statistics`, `most` and,
with `shuffle`, that seed and the teacher's number. Records of other parts do not enter them, not even as a number: the
shape of every pass is that of one teacher's batch.

What mixes nobody by construction is handed over in so many words, `PrivateFeatures.of_rows`: a table's columns, or
features that were computed image by image. Whoever calls it says that row i is a function of record i alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from terrine.determinism.randomness import numpy_generator
from terrine.device import fixed_kernels
from terrine.errors import InputError
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.statistics import Statistics, fewest
from terrine.npy import Rows


@dataclass(frozen=True)
class PrivateFeatures:
    """Features of records that belong to a partition. To be made by `private_features` or `of_rows`, not by hand.

    rows       float32 [records, features], an array or a memory map
    partition  digest of the assignment they were computed under; None: row by row, so they go with any
    least      records that a part needs to have features: two where statistics are the batch's, or partly.
               The rows of a smaller part are zeros, and its teacher is not trained
    """

    rows: np.ndarray
    partition: str | None
    least: int = 1

    @classmethod
    def of_rows(cls, rows: np.ndarray) -> PrivateFeatures:
        """Return features of which the caller asserts that row i is a function of record i alone."""
        return cls(rows, None)

    def __len__(self) -> int:
        return len(self.rows)

    def check(self, assignment: np.ndarray) -> None:
        """Raise InputError unless these features may be used by teachers of `assignment`, int64 [records]."""
        if self.partition is not None and self.partition != digest_of(assignment):
            raise InputError(
                "These features were computed for another partition of the records: their batches mix records that "
                "are different teachers' by now, and one record would touch several teachers. Compute them with "
                "terrine.teachers.features.private_features under the assignment that teachers train under."
            )

    def about(self) -> dict[str, Any]:
        """Return what must be kept beside the rows, as JSON values: `PrivateFeatures(rows, **about)`."""
        return {"partition": self.partition, "least": self.least}


def digest_of(assignment: np.ndarray) -> str:
    """Return a digest of an assignment's content, whatever its integer type. Private, as the assignment is."""
    values = np.ascontiguousarray(assignment, dtype="<i8")
    return hashlib.sha256(str(values.shape).encode() + values.tobytes()).hexdigest()


def private_features(
    backbone: Backbone,
    images: Rows,
    assignment: np.ndarray,
    statistics: Statistics,
    *,
    most: int,
    device: torch.device | str = "cpu",
    shuffle: int | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> PrivateFeatures:
    """Return the features of uint8 images [records, C, H, W], every teacher's part by itself.

    assignment: int64 [records], the teacher of each record. most: records in a batch, at least 2; a part is cut into
    near-equal batches. shuffle: a seed, by which a teacher's records are shuffled before they are cut, for files that
    are sorted by class; None keeps their order. progress: called with (fraction done, a line about it).

    A part with fewer records than `statistics` need has no features, and that is no error. Raises InputError when
    images and assignment do not fit together.
    """
    if assignment.shape != (len(images),):
        raise InputError(
            f"{len(images)} images and an assignment of shape {assignment.shape} do not fit together. Give one teacher "
            "per image."
        )
    least = fewest(statistics)
    rows = np.zeros((len(images), backbone.feature_dim), np.float32)
    batches = record_batches(assignment, most, least=least, shuffle=shuffle)
    with fixed_kernels(device):
        features_in_batches(backbone, images, batches, statistics, device, out=rows, progress=progress)
    return PrivateFeatures(rows, digest_of(assignment), least)


def record_batches(
    assignment: np.ndarray, most: int, *, least: int = 1, shuffle: int | None = None
) -> list[np.ndarray]:
    """Return batches of record numbers, each within one teacher's part; parts below `least` records are left out.

    A part is cut into near-equal batches of at most `most` records, and of at least two where it has two: three
    records with a `most` of two are one batch of three.
    """
    if most < 2:
        raise InputError(f"most is {most}: a batch of one record has no statistics. Use 2 or more.")
    order = np.argsort(assignment, kind="stable")
    teachers, starts = np.unique(assignment[order], return_index=True)
    batches: list[np.ndarray] = []
    for teacher, part in zip(teachers.tolist(), np.split(order, starts[1:]), strict=False):
        if len(part) < least:
            continue
        if shuffle is not None:
            part = part[numpy_generator(shuffle, "feature batches", teacher).permutation(len(part))]
        batches.extend(np.array_split(part, max(1, min(-(-len(part) // most), len(part) // 2))))
    return batches
