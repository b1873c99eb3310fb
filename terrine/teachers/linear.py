"""Linear teachers: N heads on one frozen backbone, trained together, voting as one matrix product.

Teachers that share a backbone differ only in their heads, so the features of all records are computed once and each
teacher learns from its own rows. On the CPU teachers with equally many records are stacked into one batched problem, as
many at a time as a fixed amount of memory holds. Two ways to train (`LinearTeachers.optimiser`):

- `adam`: cross-entropy by Adam, the setting of DIET-PATE (Anonymous 2025; 50 epochs, step 1e-3);
- `ridge`: least squares on one-hot labels with a penalty, solved exactly. A teacher has far fewer records than
  features; the closed form then is one small Cholesky factor, and its teachers are better than Adam's.

Of several findings at once (labels [records, findings]) a head has a score for each, by least squares on 0 and 1 or by
the sum of a logistic loss each. A score says how much likelier the finding is than among the teacher's own records, and
one above 0 is a vote yes; where votes are bounded, for the highest scores alone (`terrine.aggregation.votes`). Were
yes said to what is likelier than not, few teachers would ever say it of a rare finding (docs/targets.md).

Guarantees, besides those of every kind (`terrine.teachers.base`):
- On a CPU it is the same to the last bit whichever teachers share its stack, so whoever has equally many records, and
  however many threads there are: no teacher is padded to another's length, every batched product treats its matrices
  one by one, and a stack is computed by one thread (`terrine.determinism.parallel`).
- An accelerator may choose another kernel for another number of stacked matrices, and how many there are would follow
  from other teachers' records. So there teachers are trained one after the other.
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
from terrine.teachers.base import FeatureTeachers, GradientTeachers, TeacherContext
from terrine.teachers.records import Arrays, AugmentedCopies, PrivateFeatures, Records, teacher_rows, vote_type

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PART_BYTES = 2**25  # of the teachers stacked on a CPU
_TEACHER_BLOCK, _QUERY_BLOCK = 256, 512  # of one matrix product when voting


class CopyDeformations(Deformations):
    """The largest amount of each deformation of a copy: unless said otherwise, half of what features may forget."""

    rotation: Annotated[float, Unit("degrees")] = Field(7.5, ge=0, le=180)
    scale: float = Field(0.06, ge=0, lt=1)
    shear: float = Field(0.1, ge=0)
    shift: float = Field(1 / 14, ge=0)


class LinearTeachers(FeatureTeachers, GradientTeachers):
    """Linear heads; a ridge regression is the better teacher of few records, `adam` is the setting of DIET-PATE.

    `initialisation` and the settings of gradient steps are `adam`'s: a closed form has no start.
    """

    kind: Literal["linear"] = "linear"
    statistics: Literal["current", "original", "halfway"] = "current"  # type: ignore[assignment]
    """Batch normalisation statistics: those of the current batch, the original ones of the backbone, or halfway: the
    batch's mean and the geometric mean of both deviations."""
    optimiser: Literal["adam", "ridge"] = "ridge"
    """Training method: `ridge`, exact least squares on one-hot labels; `adam`, cross-entropy (Kingma and Ba 2015)."""
    ridge: float = Field(0.1, ge=1e-6)
    """Ridge penalty, in units of the mean squared distance of records from their teacher's mean. It applies per
    deformed copy."""
    prior: float = Field(0.5, gt=0, le=1)
    """optimiser=ridge: weight of a teacher's own class frequencies in its scores. With few records, teachers prefer
    their frequent classes when unsure, and a majority vote amplifies this; values below 1 reduce it. A teacher with
    only one class then votes for a random class."""
    epochs: int = Field(50, ge=1)
    """optimiser=adam: passes over a teacher's records."""
    copies: int = Field(0, ge=0, le=100)
    """Number of deformed copies of each image that a teacher also learns from. They cost time but no privacy."""
    deformations: CopyDeformations = CopyDeformations()
    """What is done to a copy: what leaves an image the same."""

    def repeated(self, values: np.ndarray) -> np.ndarray:
        return values if not self.copies else np.concatenate([values] * (1 + self.copies))

    def shown(self, images: Rows, assignment: np.ndarray, *, seed: int) -> Rows | AugmentedCopies:
        if not self.copies:
            return images
        return AugmentedCopies(images, assignment, self.copies, self.deformations, seed=seed)

    def check(self, run: Any) -> None:
        """Raise ValueError where there are no images to copy."""
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
    """The heads of several teachers: float32 weight [teachers, classes, features], bias [teachers, classes]."""

    weight: np.ndarray
    bias: np.ndarray

    def __post_init__(self) -> None:
        if self.weight.ndim != 3 or self.bias.shape != self.weight.shape[:2]:
            raise InputError(
                "Teachers' heads take a weight [teachers, classes, features] and a bias [teachers, classes], not "
                f"arrays of shapes {self.weight.shape} and {self.bias.shape}."
            )

    @property
    def teachers(self) -> int:
        """Number of teachers."""
        return len(self.weight)


class LinearKind:
    """The kind `linear`, see `terrine.teachers.base`: a state is a head's weight [classes, features] and bias.

    by_teacher: features are a backbone's, and refused unless they were computed teacher by teacher
    (`terrine.teachers.records`); otherwise plain rows are taken, too.
    """

    stacked = True
    block = 1024
    least = 1

    def __init__(
        self, settings: LinearTeachers | None = None, *, by_teacher: bool = False, findings: Findings | None = None
    ) -> None:
        self.settings, self.by_teacher, self.findings = settings or LinearTeachers(), by_teacher, findings

    def train(
        self, records: Records, teachers: Sequence[int], *, seed: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield (number, head) of each teacher that has enough records; see `train_heads`."""
        records.of("features", by_teacher=self.by_teacher)
        teachers = records.enough(teachers, self.least)
        if not teachers:
            return
        heads = train_heads(
            records.inputs,
            records.labels,
            records.assignment,
            teachers,
            records.classes,
            self.settings,
            seed=seed,
            device=device,
        )
        for teacher, weight, bias in zip(teachers, heads.weight, heads.bias, strict=True):
            yield teacher, {"weight": weight, "bias": bias}

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str = "cpu") -> np.ndarray:
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
    device: torch.device | str = "cpu",
) -> LinearHeads:
    """Train the heads of the given teachers, each on the records assigned to it; the result is in their order.

    features: of `private_features`, computed under this very assignment. Or float32 [records, features], an array or a
        memory map: by passing one the caller asserts that row i is a function of record i alone, or of records of its
        own teacher, as a table's columns and features computed image by image are; features under current statistics
        are not, unless no batch mixed teachers. Only the group's rows are read.
    labels: int64 [records], 0 .. classes - 1, or of several findings [records, classes], 0 or 1. assignment: int64
        [records], the teacher of each record.
    teachers: numbers of the group's teachers. seed: of the run; a teacher's shuffles derive from it and its number.

    A teacher may lack a class: it learns that the class is rare. With one class alone it learns nothing, and unless
    `prior` is 1 its vote goes to a class by lot. Raises InputError when arrays do not fit together, a
    label is outside its range, features were computed for another partition, a teacher has no record, or its features
    are not finite.
    """
    import torch

    from terrine.teachers.stacked_training import by_adam, by_ridge

    settings = settings or LinearTeachers()
    device = torch.device(device)
    features = Records(features, labels, assignment, classes).of("features")
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
    for _ in side_by_side(train, stacked(sizes, lambda size: 4 * size * features.shape[1], device), device):
        pass
    return LinearHeads(weight, bias)


def stacked(sizes: Mapping[int, int], bytes_of: Callable[[int], int], device: torch.device) -> Iterator[list[int]]:
    """Yield positions of teachers of one size, as many as memory allows; off the CPU one at a time.

    sizes: by position, of what a teacher learns from at once. bytes_of: what a teacher of a size takes meanwhile.
    Which teachers share a part may follow from how many records they have, and on an accelerator the kernel may follow
    from the part.
    """
    if device.type != "cpu":
        yield from ([position] for position in sizes)
        return
    by_size: dict[int, list[int]] = {}
    for position, size in sizes.items():
        by_size.setdefault(size, []).append(position)
    for size in sorted(by_size, reverse=True):
        most = max(1, _PART_BYTES // bytes_of(size))
        for first in range(0, len(by_size[size]), most):
            yield by_size[size][first : first + most]


def vote(
    heads: LinearHeads, features: Rows, *, device: torch.device | str = "cpu", findings: Findings | None = None
) -> np.ndarray:
    """Return every teacher's class for every query: unsigned integers [queries, teachers], smallest type that fits.

    features: float32 [queries, features], an array or a memory map. One matrix product, taken in blocks of queries
    and teachers, so that the scores [queries, teachers, classes] are never held at once. Of equal scores the lower
    class wins. Of several findings the votes are 0 or 1, [queries · findings, teachers]. Raises InputError when
    features do not fit the heads or are not finite.
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
