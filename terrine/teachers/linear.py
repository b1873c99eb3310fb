"""Linear teachers: N heads on one frozen backbone, trained together, voting as one matrix product.

Teachers that share a backbone differ only in their heads, so the features of all records are computed once and each
teacher learns from its own rows. On the CPU teachers with equally many records are stacked into one batched problem, as
many at a time as a fixed amount of memory holds. Two ways to train (`LinearTeachers.optimiser`):

- `adam`: cross-entropy by Adam, the setting of DIET-PATE (Anonymous 2025; 50 epochs, step 1e-3);
- `ridge`: least squares on one-hot labels with a penalty, solved exactly. A teacher has far fewer records than
  features; the closed form then is one small Cholesky factor, and its teachers are better than Adam's.

Of several findings at once (labels [records, findings]) a head has a score for each, by least squares on 0 and 1 or by
the sum of a logistic loss each. A score says how much likelier the finding is than among the teacher's own records, and
one above 0 is a vote yes; where votes are bounded, for the highest scores alone (`terrine.aggregation.findings`). Were
yes said to what is likelier than not, few teachers would ever say it of a rare finding (docs/several-findings.md).

Guarantees, besides those of every kind (`terrine.teachers.kind`):
- On a CPU it is the same to the last bit whichever teachers share its stack, so whoever has equally many records, and
  however many threads there are: no teacher is padded to another's length, every batched product treats its matrices
  one by one, and a stack is computed by one thread (`terrine.determinism.parallel`).
- An accelerator may choose another kernel for another number of stacked matrices, and how many there are would follow
  from other teachers' records. So there teachers are trained one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.aggregation.findings import Findings, bounded
from terrine.classifiers import initial_head
from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import derive_seed, torch_generator
from terrine.errors import InputError
from terrine.queries import Queries
from terrine.teachers.features import PrivateFeatures
from terrine.teachers.kind import Arrays, Records, rows_of, vote_type
from terrine.teachers.kinds.linear import LinearTeachers

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's own, as everywhere
_PART_BYTES = 2**25  # features of the teachers stacked on a CPU
_TEACHER_BLOCK, _QUERY_BLOCK = 256, 512  # of one matrix product when voting


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

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, as a safetensors file holds them; arrays of groups concatenate."""
        return {"weight": self.weight, "bias": self.bias}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> LinearHeads:
        """Return the heads that `to_arrays` described. Raises InputError when an array is missing or misshapen."""
        if not {"weight", "bias"} <= arrays.keys():
            raise InputError(f"Heads need the arrays weight and bias; there are: {', '.join(sorted(arrays))}.")
        return cls(np.asarray(arrays["weight"], np.float32), np.asarray(arrays["bias"], np.float32))


class LinearKind:
    """The kind `linear`, see `terrine.teachers.kind`: a state is a head's weight [classes, features] and bias.

    by_teacher: features are a backbone's, and refused unless they were computed teacher by teacher
    (`terrine.teachers.features`); otherwise plain rows are taken, too.
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
        if self.by_teacher:
            records.refuse_mixed_batches()
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
    settings = settings or LinearTeachers()
    device = torch.device(device)
    if isinstance(features, PrivateFeatures):
        features.check(assignment)
        features = features.rows
    _check(features, labels, assignment, classes)
    rows = rows_of(assignment, teachers)
    weight = np.empty((len(teachers), classes, features.shape[1]), np.float32)
    bias = np.empty((len(teachers), classes), np.float32)

    def train(positions: list[int]) -> list[int]:
        index = np.stack([rows[position] for position in positions])
        inputs = torch.from_numpy(features[index]).to(device)
        if not bool(torch.isfinite(inputs.sum())):
            raise InputError(f"features: a record of teachers {[teachers[p] for p in positions]} is not finite.")
        targets = torch.from_numpy(labels[index].astype(np.int64, copy=False)).to(device)
        if settings.optimiser == "ridge":
            heads = _solve_ridge(inputs, targets, classes, settings)
        else:
            heads = _train_adam(inputs, targets, classes, settings, seed, [teachers[p] for p in positions])
        weight[positions], bias[positions] = (part.cpu().numpy() for part in heads)
        if settings.optimiser == "ridge" and settings.prior < 1 and labels.ndim == 1:
            for position, own in zip(positions, index, strict=True):
                if (labels[own] == labels[own[0]]).all():
                    bias[position] = _by_lot(features[own], classes)
        return positions

    for _ in side_by_side(train, _parts(rows, features.shape[1], device), device):
        pass
    return LinearHeads(weight, bias)


def _check(features: np.ndarray, labels: np.ndarray, assignment: np.ndarray, classes: int) -> None:
    if features.ndim != 2 or features.dtype != np.float32:
        raise InputError(f"features: float32 [records, features] expected, got {features.dtype} {features.shape}.")
    if labels.shape not in ((len(features),), (len(features), classes)) or assignment.shape != (len(features),):
        raise InputError(
            f"features of {len(features)} records, labels of shape {labels.shape} and an assignment of shape "
            f"{assignment.shape} do not fit together. Give one label and one teacher per record."
        )
    most = classes - 1 if labels.ndim == 1 else 1
    if len(labels) and not (labels.min() >= 0 and labels.max() <= most):
        raise InputError(f"labels run from {labels.min()} to {labels.max()}, outside 0..{most}.")


def _parts(rows: list[np.ndarray], features: int, device: torch.device) -> Iterator[list[int]]:
    """Yield positions of teachers with equally many records, as many as memory allows; off the CPU one at a time."""
    if device.type != "cpu":
        yield from ([position] for position in range(len(rows)))
        return
    by_size: dict[int, list[int]] = {}
    for position, own in enumerate(rows):
        by_size.setdefault(len(own), []).append(position)
    for size in sorted(by_size, reverse=True):
        most = max(1, _PART_BYTES // (4 * size * features))
        for first in range(0, len(by_size[size]), most):
            yield by_size[size][first : first + most]


def _by_lot(records: np.ndarray, classes: int) -> np.ndarray:
    """Return the bias of a teacher that has records of one class alone, and so no weights: one class has its vote.

    Which class that is says nothing of a query. Were it the teacher's own, all such votes would lean to the class that
    most parties have, and an ensemble of many would call everything by it. So it is drawn, from the teacher's own
    records and nothing else: numbers of teachers are alike at several parties, and one record still moves one teacher.
    """
    return np.eye(classes, dtype=np.float32)[crc32(np.ascontiguousarray(records)) % classes]


def _solve_ridge(inputs: Tensor, targets: Tensor, classes: int, settings: LinearTeachers) -> tuple[Tensor, Tensor]:
    """Return weight [T, C, D] and bias [T, C] that minimise ‖Y − X Wᵀ − b‖² + ridge · s · ‖W‖², one-hot Y, free b.

    Of b, 1 − `prior` of the classes' frequencies are taken away. A query's scores then add up to `prior`, and a class
    that a teacher has no record of has score 0, so it never votes for one.

    With deformed copies among the records the penalty grows with n: copies that are all alike change nothing.

    inputs: [T, n, D]; targets: [T, n], or [T, n, C] of findings, whose b makes the score of a mean record 0; s is the
    mean squared norm of a centred record. Solved in the n x n dual when there are fewer records than features,
    (X Xᵀ + ridge s) A = Y, Wᵀ = Xᵀ A, and in the D x D primal otherwise.
    """
    records, features = inputs.shape[1:]
    mean = inputs.mean(1, keepdim=True)
    centred = inputs - mean
    several = targets.ndim == 3
    one_hot = targets.to(inputs.dtype) if several else F.one_hot(targets, classes).to(inputs.dtype)
    frequency = one_hot.mean(1, keepdim=True)
    one_hot -= frequency
    dual = records < features
    gram = torch.bmm(centred, centred.mT) if dual else torch.bmm(centred.mT, centred)
    # The factor is computed in double precision where there is one: a small penalty leaves the system ill-conditioned.
    gram = gram.to(_precise(inputs.device))
    diagonal = gram.diagonal(dim1=1, dim2=2)
    # A teacher whose records are all alike has scale 0, and nothing to learn beside the labels' frequencies.
    scale = diagonal.sum(1, keepdim=True) / records
    diagonal += settings.ridge * (1 + settings.copies) * torch.where(scale > 0, scale, 1.0)
    factor = torch.linalg.cholesky(gram)
    right = one_hot if dual else torch.bmm(centred.mT, one_hot)
    solution = torch.cholesky_solve(right.to(gram.dtype), factor).to(inputs.dtype)
    weight = torch.bmm(solution.mT, centred) if dual else solution.mT.contiguous()
    bias = -torch.bmm(mean, weight.mT)
    return weight, (bias if several else settings.prior * frequency + bias)[:, 0]


def _precise(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _train_adam(
    inputs: Tensor, targets: Tensor, classes: int, settings: LinearTeachers, seed: int, teachers: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return weight [T, C, D] and bias [T, C] after Adam on each teacher's own shuffled batches."""
    _, records, features = inputs.shape
    device = inputs.device
    seeds = [start_seed(seed, teacher, settings.initialisation) for teacher in teachers]
    heads = {each: initial_head(features, classes, each) for each in set(seeds)}
    starts = [heads[each] for each in seeds]
    weight = torch.from_numpy(np.stack([start.weight for start in starts])).to(device)
    bias = torch.from_numpy(np.stack([start.bias for start in starts])).to(device)
    several = targets.ndim == 3
    one_hot = targets.to(inputs.dtype) if several else F.one_hot(targets, classes).to(inputs.dtype)
    generators = [torch_generator(seed, "teacher shuffle", teacher) for teacher in teachers]
    batch = min(settings.batch or records, records)
    states = [(weight, torch.zeros_like(weight), torch.zeros_like(weight))]
    states.append((bias, torch.zeros_like(bias), torch.zeros_like(bias)))
    step = 0
    for _ in range(settings.epochs):
        if batch < records:
            order = torch.stack([torch.randperm(records, generator=generator) for generator in generators]).to(device)
            batches = order.split(batch, dim=1)
        else:
            batches = (None,)
        for index in batches:
            step += 1
            own_inputs = inputs if index is None else _take(inputs, index)
            own_targets = one_hot if index is None else _take(one_hot, index)
            logits = torch.bmm(own_inputs, weight.mT) + bias[:, None]
            likely = _logistic(logits) if several else torch.softmax(logits, dim=2)
            error = (likely - own_targets) / own_inputs.shape[1]
            gradient = torch.bmm(error.mT, own_inputs)
            if settings.weight_decay:
                gradient += weight * settings.weight_decay
            _adam_step(states[0], gradient, settings.learning_rate, step)
            _adam_step(states[1], error.sum(1), settings.learning_rate, step)
    if several:
        odds = [math.log((yes + 0.5) / (records - yes + 0.5)) for yes in range(records + 1)]
        bias = bias - bias.new_tensor(odds)[targets.sum(1)]
    return weight, bias


def _logistic(scores: Tensor) -> Tensor:
    """Return 1 / (1 + e^−score), of which no element's last bit hangs on its place among the others (`_adam_step`)."""
    return torch.softmax(torch.stack([scores, torch.zeros_like(scores)], dim=-1), dim=-1)[..., 0]


def start_seed(seed: int, teacher: int, initialisation: str) -> int:
    """Return the seed of a teacher's initial weights: the run's if they are `shared`, one of its `own` otherwise.

    Both are public, so they cost no privacy. A shared start makes teachers agree more (Anonymous 2025, section 4).
    """
    return seed if initialisation == "shared" else derive_seed(seed, "own initialisation", teacher)


def _take(values: Tensor, index: Tensor) -> Tensor:
    """Return values [T, n, K] at each teacher's own rows [T, b]: [T, b, K]."""
    offset = torch.arange(len(values), device=values.device)[:, None] * values.shape[1]
    return values.flatten(0, 1)[index + offset]


def _adam_step(state: tuple[Tensor, Tensor, Tensor], gradient: Tensor, learning_rate: float, step: int) -> None:
    """Move a parameter by Adam, in place (Kingma and Ba 2015, algorithm 1).

    Every operation rounds once. Fused multiply-adds would round differently in the vectorised body of an array and in
    its tail, and a teacher's place in its part would show in its last bit.
    """
    value, first, second = state
    first.mul_(_BETA1).add_(gradient * (1 - _BETA1))
    second.mul_(_BETA2).add_((gradient * gradient).mul_(1 - _BETA2))
    size = (second / (1 - _BETA2**step)).sqrt_().add_(_EPSILON)
    value.sub_((first * (learning_rate / (1 - _BETA1**step))).div_(size))


def vote(
    heads: LinearHeads, features: np.ndarray, *, device: torch.device | str = "cpu", findings: Findings | None = None
) -> np.ndarray:
    """Return every teacher's class for every query: unsigned integers [queries, teachers], smallest type that fits.

    features: float32 [queries, features], an array or a memory map. One matrix product, taken in blocks of queries
    and teachers, so that the scores [queries, teachers, classes] are never held at once. Of equal scores the lower
    class wins. Of several findings the votes are 0 or 1, [queries · findings, teachers]. Raises InputError when
    features do not fit the heads or are not finite.
    """
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
