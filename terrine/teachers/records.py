"""Private records and their features, computed so that no batch mixes records of different teachers.

With current statistics a feature depends on all images of its batch (`terrine.models.statistics`). If records of two
teachers shared a batch, one record would affect both and could move all votes, but only one vote would be charged.
Features of records are therefore computed only here, teacher by teacher, and carry the digest of their partition:

    features = private_features(backbone, images, assignment, "current", most=500)
    heads = train_heads(features, labels, assignment, teachers, classes, seed=0)     # refused for another partition

Guarantee: a record's features are a function of the records of the same part, the backbone, `statistics`, `most` and,
with `shuffle`, that seed and the teacher's number. They do not depend on records of other parts or on their number: the
shape of every pass is that of one teacher's batch.

Features that by construction mix no records (a table's columns, or features computed image by image) are declared with
`PrivateFeatures.of_rows`: the caller asserts that row i is a function of record i only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from terrine.determinism.randomness import numpy_generator, torch_generator
from terrine.device import fixed_kernels
from terrine.errors import InputError
from terrine.models.deformations import Deformations, deform_by, draw_amounts
from terrine.npy import Rows

if TYPE_CHECKING:
    import torch

    from terrine.models.backbone import Backbone
    from terrine.models.statistics import Statistics


Arrays = dict[str, np.ndarray]
"""A teacher's state: arrays by name."""


@dataclass(frozen=True)
class PrivateFeatures:
    """Features of records under a partition, made by `private_features` or `of_rows`.

    Attributes:
        rows: float32 [records, features], an array or a memory map.
        partition: Digest of the assignment under which they were computed; None if they are valid under any assignment
            because each row depends on a single record.
        min_records: Number of records that a part needs to get features: two if batches use their own statistics. The
            rows of a smaller part are zeros, and its teacher is not trained.
    """

    rows: np.ndarray
    partition: str | None
    min_records: int = 1

    @classmethod
    def of_rows(cls, rows: np.ndarray) -> PrivateFeatures:
        """Return features from rows; the caller asserts that row i is a function of record i only."""
        return cls(rows, None)

    def __len__(self) -> int:
        return len(self.rows)

    def check(self, assignment: np.ndarray) -> None:
        """Raise InputError unless these features may be used by teachers of `assignment`, int64 [records]."""
        if self.partition is not None and self.partition != assignment_digest(assignment):
            raise InputError(
                "These features were computed for another partition: their batches mix records of teachers that are "
                "now different, so one record would affect several teachers. Compute them with "
                "terrine.teachers.records.private_features under the assignment that teachers train under."
            )


def assignment_digest(assignment: np.ndarray) -> str:
    """Return a digest of an assignment, independent of its integer type; as private as the assignment."""
    values = np.ascontiguousarray(assignment, dtype="<i8")
    return hashlib.sha256(str(values.shape).encode() + values.tobytes()).hexdigest()


def private_features(
    backbone: Backbone,
    images: Rows | AugmentedCopies,
    assignment: np.ndarray,
    statistics: Statistics,
    *,
    most: int,
    device: torch.device | str = "cpu",
    shuffle: int | None = None,
) -> PrivateFeatures:
    """Compute the features of images separately for each teacher's part.

    A part with fewer records than `statistics` (`current`, `original` or `halfway`) need has no features; this is no
    error. Images are uint8 [records, C, H, W], and the assignment int64 [records]. The public backbone is moved to
    `device`. A part is cut into near-equal batches of at most `most` records, at least 2, after shuffling it by the
    seed `shuffle`, for files sorted by class.

    Raises:
        InputError: Images and assignment differ in length.
    """
    if assignment.shape != (len(images),):
        raise InputError(
            f"{len(images)} images and an assignment of shape {assignment.shape} do not fit together. Give one teacher "
            "per image."
        )
    from terrine.models.backbone import features_in_batches
    from terrine.models.statistics import min_batch_size

    least = min_batch_size(statistics)
    rows = np.zeros((len(images), backbone.feature_dim), np.float32)
    batches = record_batches(assignment, most, least=least, shuffle=shuffle)
    with fixed_kernels(device):
        features_in_batches(backbone, cast(Rows, images), batches, statistics, device, out=rows)
    return PrivateFeatures(rows, assignment_digest(assignment), least)


def record_batches(
    assignment: np.ndarray, most: int, *, least: int = 1, shuffle: int | None = None
) -> list[np.ndarray]:
    """Return batches of record numbers, each within one teacher's part; parts below `least` records have none.

    A part is cut into near-equal batches of at most `most` records, and of at least two if it has that many: with
    `most` = 2, three records make one batch of three.
    """
    if most < 2:
        raise InputError(f"most is {most}: a batch of one record has no statistics. Use 2 or more.")
    batches: list[np.ndarray] = []
    for teacher, part in _records_by_teacher(assignment):
        if len(part) < least:
            continue
        if shuffle is not None:
            part = part[numpy_generator(shuffle, "feature batches", teacher).permutation(len(part))]
        batches.extend(np.array_split(part, max(1, min(-(-len(part) // most), len(part) // 2))))
    return batches


def _records_by_teacher(assignment: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (number, ascending record numbers) of each teacher that has records."""
    order = np.argsort(assignment, kind="stable")
    teachers, starts = np.unique(assignment[order], return_index=True)
    yield from zip(teachers.tolist(), np.split(order, starts[1:]), strict=False)


@dataclass(frozen=True)
class Records:
    """Training data of all teachers.

    Attributes:
        inputs: Features, or uint8 images [records, C, H, W]; arrays or memory maps. A backbone's features are
            `PrivateFeatures` of this assignment. A plain float32 array [records, features] is treated as
            `PrivateFeatures.of_rows`: the caller asserts that no row depends on another record.
        labels: int64 [records], 0 .. classes - 1; for several findings int64 [records, classes], 0 or 1.
        assignment: int64 [records], the teacher of each record.

    Raises:
        InputError: Shapes do not match, or features were computed for another assignment.
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
        """The inputs as an array."""
        return self.inputs.rows if isinstance(self.inputs, PrivateFeatures) else self.inputs

    def trainable(self, teachers: Sequence[int] | np.ndarray, least: int) -> list[int]:
        """Return those of `teachers` with at least `least` records and as many as their features need, in order."""
        if isinstance(self.inputs, PrivateFeatures):
            least = max(least, self.inputs.min_records)
        counts = np.bincount(self.assignment, minlength=max(teachers, default=0) + 1)
        return [teacher for teacher in teachers if counts[teacher] >= least]

    def checked_inputs(self, wanted: Literal["features", "images"], *, by_teacher: bool = False) -> np.ndarray:
        """Return the inputs as an array after checking their kind.

        Args:
            wanted: `features`, float32 [records, features], or `images`, uint8 [records, C, H, W].
            by_teacher: Whether features must have been computed teacher by teacher (`private_features`).

        Raises:
            InputError: The inputs are not of the wanted kind.
        """
        if by_teacher and (not isinstance(self.inputs, PrivateFeatures) or self.inputs.partition is None):
            raise InputError(
                "These features of a backbone were not computed teacher by teacher: a batch may contain records of "
                "several teachers, so one record would affect all of them. Compute them with "
                "terrine.teachers.records.private_features under the assignment that teachers train under."
            )
        values = self.values
        if (values.ndim, values.dtype) != ((2, np.dtype("f4")) if wanted == "features" else (4, np.dtype("u1"))):
            kind = "float32 [records, features]" if wanted == "features" else "uint8 [records, C, H, W]"
            raise InputError(
                f"These teachers learn from {wanted}, {kind}, not from {values.dtype} {list(values.shape)}. A table "
                "needs linear or estimator teachers."
            )
        return values


def teacher_rows(assignment: np.ndarray, teachers: Sequence[int]) -> list[np.ndarray]:
    """Return each teacher's record numbers, ascending. Raises InputError for a teacher without any record."""
    order = np.argsort(assignment, kind="stable")
    arranged = assignment[order]
    starts = np.searchsorted(arranged, teachers, side="left")
    ends = np.searchsorted(arranged, teachers, side="right")
    for teacher, start, end in zip(teachers, starts, ends, strict=True):
        if start == end:
            raise InputError(f"Teacher {teacher} has no record. Use fewer teachers, or another partition.")
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]


def vote_type(classes: int) -> np.dtype:
    """Return the smallest unsigned integer type that holds 0 .. classes - 1."""
    return np.min_scalar_type(max(classes - 1, 0))


def count_teachers_missing_class(labels: np.ndarray, assignment: np.ndarray, teachers: int, classes: int) -> int:
    """Return the number of teachers that lack some class. This is allowed; the number is private.

    Args:
        labels: int64 [records], 0 .. classes - 1.
        assignment: int64 [records], 0 .. teachers - 1.
        teachers: Number of teachers.
        classes: Number of classes.
    """
    counts = np.bincount(assignment * classes + labels, minlength=teachers * classes)
    return int((counts.reshape(teachers, classes) == 0).any(axis=1).sum())


class AugmentedCopies:
    """uint8 images [records · (1 + copies), C, H, W]: all images, then the first copy of each, then the second, ...

    Deformed copies give a teacher with few records knowledge that does not depend on records: a slightly rotated or
    shifted digit is the same digit. Copies are computed when they are indexed: an index array gives an array.

    Guarantee: the deformations of a record's copies depend on the seed, its teacher's number, the size of its teacher's
    part and the record's position in it, but not on records of other teachers or their number. Copies belong to their
    record's teacher in every later step, so one unit still affects one teacher.
    """

    def __init__(
        self, images: Rows, assignment: np.ndarray, copies: int, deformations: Deformations, *, seed: int
    ) -> None:
        import torch

        self._images, self._deformations = images, deformations
        self._amounts = torch.zeros(copies, len(images), 5)
        for teacher, part in _records_by_teacher(assignment):
            generator = torch_generator(seed, "deformed copies", teacher)
            drawn = draw_amounts(len(part) * copies, generator).view(len(part), copies, 5)
            self._amounts[:, torch.from_numpy(part)] = drawn.transpose(0, 1)
        self._count = len(images) * (1 + copies)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, numbers: np.ndarray) -> np.ndarray:
        import torch

        from terrine.models.backbone import as_float

        copy, record = np.divmod(np.asarray(numbers), len(self._images))
        found = np.array(self._images[record])
        moved = np.flatnonzero(copy)
        if len(moved):
            amounts = self._amounts[torch.from_numpy(copy[moved] - 1), torch.from_numpy(record[moved])]
            levels = deform_by(as_float(torch.from_numpy(found[moved])), self._deformations, amounts)
            found[moved] = levels.mul_(255).round_().clamp_(0, 255).to(torch.uint8).numpy()
        return found
