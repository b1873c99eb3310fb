"""Linear teachers: N heads on one frozen backbone, trained together; their votes are one matrix product.

Teachers that share a backbone differ only in their heads, so the features of all records are computed once and each
teacher learns from its own rows. On the CPU, teachers with equally many records are stacked into batched problems that
fit a fixed amount of memory. There are two optimisers (`LinearTeachers.optimiser`):

- `adam`: cross-entropy by Adam, the setting of DIET-PATE (Anonymous 2025; 50 epochs, step 1e-3);
- `ridge`: least squares on one-hot labels with a penalty, solved exactly. A teacher has far fewer records than
  features, so the solution takes one small Cholesky factorisation; the teachers are more accurate than with Adam.

With several findings (labels [records, findings]) a head has a score for each, trained by least squares on 0 and 1 or
on the sum of logistic losses. A score compares the finding's probability with its frequency among the teacher's own
records. A positive score is a vote for yes, but if votes are bounded, only the highest scores count
(`terrine.aggregation.votes`). With a threshold of probability 1/2, rare findings would hardly ever get a yes
(docs/targets.md).

Guarantees, in addition to those of every kind (`terrine.teachers.base`):
- On a CPU a teacher is the same to the last bit in every stack, hence for all record counts of other teachers, and for
  every number of threads: no teacher is padded to another's length, batched products treat matrices separately, and
  one thread computes a stack (`terrine.determinism.parallel`).
- An accelerator may choose its kernel by the number of stacked matrices, which would depend on other teachers' records.
  On accelerators, teachers are therefore trained one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from terrine.aggregation.votes import Findings, bounded
from terrine.determinism.parallel import side_by_side
from terrine.errors import InputError
from terrine.models.deformations import Deformations
from terrine.npy import Rows
from terrine.queries import Queries
from terrine.settings import Field, Unit
from terrine.teachers.base import FeatureTeachers, GradientTeachers, TeacherContext, TeacherKind
from terrine.teachers.records import Arrays, AugmentedCopies, PrivateFeatures, Records, teacher_rows, vote_type

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from terrine.teachers.base import Device, TrainedStates

_STACK_BYTES = 2**25  # memory for the teachers of one stack on a CPU
_TEACHER_BLOCK, _QUERY_BLOCK = 256, 512  # shape of one matrix product when voting


class CopyDeformations(Deformations):
    """Maximum deformations of a copy: by default half of the deformations to which features are made invariant."""

    rotation: Annotated[float, Unit("degrees")] = Field(7.5, ge=0, le=180)
    scale: float = Field(0.06, ge=0, lt=1)
    shear: float = Field(0.1, ge=0)
    shift: float = Field(1 / 14, ge=0)


class LinearTeachers(FeatureTeachers, GradientTeachers):
    """Linear heads; `ridge` regression is better for few records, `adam` is the setting of DIET-PATE.

    `initialisation` and the settings of gradient steps apply to `adam` only.
    """

    kind: Literal["linear"] = "linear"
    statistics: Literal["current", "original", "halfway"] = "current"  # type: ignore[assignment]
    """Batch normalisation statistics: those of the current batch, the original ones of the backbone, or halfway: the
    batch's mean and the geometric mean of both deviations."""
    optimiser: Literal["adam", "ridge"] = "ridge"
    """Training method: `ridge`, exact least squares on one-hot labels; `adam`, cross-entropy (Kingma and Ba 2015)."""
    ridge: float = Field(0.1, ge=1e-6)
    """Ridge penalty, in units of the mean squared distance of records from their teacher's mean. The penalty grows with
    the number of deformed copies."""
    prior: float = Field(0.5, gt=0, le=1)
    """optimiser=ridge: weight of a teacher's own class frequencies in its scores. With few records, teachers prefer
    their frequent classes when unsure, and a majority vote amplifies this; values below 1 reduce it. A teacher with
    only one class then votes for a random class."""
    epochs: int = Field(50, ge=1)
    """optimiser=adam: passes over a teacher's records."""
    copies: int = Field(0, ge=0, le=100)
    """Number of deformed copies of each image that a teacher also learns from. Copies cost time but no privacy."""
    deformations: CopyDeformations = CopyDeformations()
    """Maximum deformations of a copy, which must preserve its class."""

    def repeat_for_copies(self, values: np.ndarray) -> np.ndarray:
        return values if not self.copies else np.concatenate([values] * (1 + self.copies))

    def augmented_images(self, images: Rows, assignment: np.ndarray, *, seed: int) -> Rows | AugmentedCopies:
        if not self.copies:
            return images
        return AugmentedCopies(images, assignment, self.copies, self.deformations, seed=seed)

    def check(self, run: Any) -> None:
        """Raise ValueError if copies are requested but the data are not images."""
        super().check(run)
        if run.data.name == "table" and self.copies:
            raise ValueError(
                f"teachers.copies={self.copies} are deformed images, and data.name=table has none. Set teachers.copies "
                "to 0"
            )

    def build(self, context: TeacherContext) -> LinearKind:
        return LinearKind(self, by_teacher=context.by_teacher, findings=context.findings)


@dataclass(frozen=True)
class LinearHeads:
    """Heads of several teachers: float32 weight [teachers, classes, features], bias [teachers, classes]."""

    weight: np.ndarray
    bias: np.ndarray

    def __post_init__(self) -> None:
        if self.weight.ndim != 3 or self.bias.shape != self.weight.shape[:2]:
            raise InputError(
                "Teachers' heads take a weight [teachers, classes, features] and a bias [teachers, classes], not "
                f"arrays of shapes {self.weight.shape} and {self.bias.shape}."
            )


class LinearKind(TeacherKind):
    """The kind `linear`: a teacher's state is its head's weight [classes, features] and bias [classes].

    With `by_teacher`, features must have been computed teacher by teacher (`terrine.teachers.records`); otherwise plain
    rows are accepted, too.
    """

    block = 1024

    def __init__(
        self, settings: LinearTeachers | None = None, *, by_teacher: bool = False, findings: Findings | None = None
    ) -> None:
        self.settings, self.by_teacher, self.findings = settings or LinearTeachers(), by_teacher, findings

    def train(self, records: Records, teachers: Sequence[int], *, seed: int, device: Device = "cpu") -> TrainedStates:
        """Yield (number, head) of each teacher that has enough records; see `train_heads`."""
        records.checked_inputs("features", by_teacher=self.by_teacher)
        teachers = records.trainable(teachers, self.min_records)
        if not teachers:
            return
        labels, assignment, classes = records.labels, records.assignment, records.classes
        heads = train_heads(
            records.inputs, labels, assignment, teachers, classes, self.settings, seed=seed, device=device
        )
        for teacher, weight, bias in zip(teachers, heads.weight, heads.bias, strict=True):
            yield teacher, {"weight": weight, "bias": bias}

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: Device = "cpu") -> np.ndarray:
        """Return votes [queries, teachers]; see `vote`. A head's score of a query does not depend on its batch."""
        states = list(states)
        heads = LinearHeads(*(np.stack([state[name] for state in states]) for name in ("weight", "bias")))
        return vote(heads, queries.inputs, device=device, findings=self.findings)


def train_heads(
    features: np.ndarray | PrivateFeatures,
    labels: np.ndarray,
    assignment: np.ndarray,
    teachers: Sequence[int],
    classes: int,
    settings: LinearTeachers | None = None,
    *,
    seed: int,
    device: Device = "cpu",
) -> LinearHeads:
    """Train the heads of the given teachers, each on the records assigned to it.

    A teacher that lacks a class learns that the class is rare. A teacher with only one class learns nothing and, unless
    `prior` is 1, votes for a pseudorandom class.

    Args:
        features: The result of `private_features` under this assignment, or float32 [records, features], an array or a
            memory map. By passing an array, the caller asserts that row i depends only on record i or on records of the
            same teacher. This holds for a table's columns and for features computed image by image, but not for
            features under current statistics if a batch mixed teachers. Only the given teachers' rows are read.
        labels: int64 [records], 0 .. classes - 1, or for several findings [records, classes], 0 or 1.
        assignment: int64 [records], the teacher of each record.
        teachers: Numbers of the teachers to train.
        classes: Number of classes.
        settings: Training settings; None for the defaults.
        seed: The run's seed; a teacher's shuffles depend on it and on the teacher's number.
        device: Device of the computation.

    Returns:
        The heads, in the order of `teachers`.

    Raises:
        InputError: Arrays do not fit together, a label is out of range, features belong to another partition or are not
            finite, or a teacher has no records.
    """
    import torch

    from terrine.teachers.stacked_training import by_adam, by_ridge

    settings = settings or LinearTeachers()
    device = torch.device(device)
    features = Records(features, labels, assignment, classes).checked_inputs("features")
    rows = teacher_rows(assignment, teachers)
    weight = np.empty((len(teachers), classes, features.shape[1]), np.float32)
    bias = np.empty((len(teachers), classes), np.float32)

    def train(positions: list[int]) -> list[int]:
        index = np.stack([rows[position] for position in positions])
        inputs = torch.from_numpy(features[index]).to(device)
        if not bool(torch.isfinite(torch.stack(inputs.aminmax())).all()):  # a sum may overflow
            raise InputError(f"features: a record of teachers {[teachers[p] for p in positions]} is not finite.")
        targets = torch.from_numpy(labels[index].astype(np.int64, copy=False)).to(device)
        if settings.optimiser == "ridge":
            heads = by_ridge(inputs, targets, classes, settings)
        else:
            heads = by_adam(inputs, targets, classes, settings, seed, [teachers[p] for p in positions])
        weight[positions], bias[positions] = (part.cpu().numpy() for part in heads)
        return positions

    sizes = {position: len(own) for position, own in enumerate(rows)}
    for _ in side_by_side(train, stacks(sizes, lambda size: 4 * size * features.shape[1], device), device):
        pass
    return LinearHeads(weight, bias)


def stacks(sizes: Mapping[int, int], memory: Callable[[int], int], device: torch.device) -> Iterator[list[int]]:
    """Yield positions of teachers of equal size, as many at a time as memory allows; one at a time on accelerators.

    Teachers of a stack have equal numbers of records, and an accelerator's kernel may depend on the size of a stack.

    Args:
        sizes: Number of records in one step of a teacher, by position.
        memory: Function that returns the bytes that a teacher with this number of records needs.
        device: Device of the training.
    """
    if device.type != "cpu":
        yield from ([position] for position in sizes)
        return
    by_size: dict[int, list[int]] = {}
    for position, size in sizes.items():
        by_size.setdefault(size, []).append(position)
    for size in sorted(by_size, reverse=True):
        most = max(1, _STACK_BYTES // memory(size))
        for first in range(0, len(by_size[size]), most):
            yield by_size[size][first : first + most]


def vote(heads: LinearHeads, features: Rows, *, device: Device = "cpu", findings: Findings | None = None) -> np.ndarray:
    """Return every teacher's class for every query.

    This is one matrix product, computed in blocks of queries and teachers, so that the scores [queries, teachers,
    classes] are never all in memory. Ties go to the lower class.

    Args:
        heads: Linear heads of all teachers.
        features: float32 [queries, features], an array or a memory map.
        device: Device of the computation.
        findings: Number of findings per query and maximum that a teacher may report; None for one class per query.

    Returns:
        Unsigned integers [queries, teachers] of the smallest type that fits; for several findings 0 or 1, [queries ·
        findings, teachers].

    Raises:
        InputError: The features do not match the heads, or are not finite.
    """
    import torch

    device = torch.device(device)
    teachers, classes, dimension = heads.weight.shape
    if features.ndim != 2 or features.shape[1] != dimension:
        raise InputError(f"features of shape {features.shape} do not fit heads on {dimension} features.")
    each = 1 if findings is None else findings.number
    votes = np.empty((len(features) * each, teachers), vote_type(classes))
    for first in range(0, teachers, _TEACHER_BLOCK):
        block = slice(first, first + _TEACHER_BLOCK)
        weight = torch.tensor(heads.weight[block], device=device).flatten(0, 1)
        bias = torch.tensor(heads.bias[block], device=device).flatten()

        def decide(start: int, block: slice = block, weight: Tensor = weight, bias: Tensor = bias) -> None:
            queries = torch.tensor(features[start : start + _QUERY_BLOCK], dtype=torch.float32, device=device)
            if not bool(torch.isfinite(queries.sum())):
                raise InputError(f"features: one of the queries {start} to {start + len(queries) - 1} is not finite.")
            scores = torch.addmm(bias, queries, weight.T).view(len(queries), -1, classes)
            if findings is None:
                votes[start : start + len(queries), block] = scores.argmax(2).cpu().numpy()
                return
            yes = bounded(scores.cpu().numpy(), findings.bound).transpose(0, 2, 1)
            votes[start * each : (start + len(queries)) * each, block] = yes.reshape(-1, yes.shape[2])

        for _ in side_by_side(decide, range(0, len(features), _QUERY_BLOCK), device):
            pass
    return votes
