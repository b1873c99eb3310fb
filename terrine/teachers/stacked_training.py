"""Training of many small models at once: linear heads with equally many records, and Adam on stacked problems.

Every batched product treats its matrices one by one, so a head is the same to the last bit whatever is stacked with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.determinism.randomness import torch_generator
from terrine.heads import initial_head
from terrine.teachers.base import start_seed

if TYPE_CHECKING:
    from terrine.teachers.linear import LinearTeachers

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's own, as everywhere


def by_ridge(inputs: Tensor, targets: Tensor, classes: int, settings: LinearTeachers) -> tuple[Tensor, Tensor]:
    """Return weight [T, C, D] and bias [T, C] that minimise ‖Y − X Wᵀ − b‖² + ridge · s · ‖W‖², one-hot Y, free b.

    Of b, 1 − `prior` of the classes' frequencies are taken away. A query's scores then add up to `prior`, and a class
    that a teacher has no record of has score 0, so it never votes for one; with records of one class alone, and `prior`
    below 1, its vote goes to a class by lot.

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
    gram = gram.to(torch.float32 if inputs.device.type == "mps" else torch.float64)
    diagonal = gram.diagonal(dim1=1, dim2=2)
    # A teacher whose records are all alike has scale 0, and nothing to learn beside the labels' frequencies.
    scale = diagonal.sum(1, keepdim=True) / records
    diagonal += settings.ridge * (1 + settings.copies) * torch.where(scale > 0, scale, 1.0)
    factor, failed = torch.linalg.cholesky_ex(gram)
    # Records beyond what floating point can square have no head, and their teacher none but for its labels.
    failed = (failed > 0) | ~torch.isfinite(factor).flatten(1).all(1)
    right = one_hot if dual else torch.bmm(centred.mT, one_hot)
    solution = torch.cholesky_solve(right.to(gram.dtype), factor).to(inputs.dtype)
    weight = torch.bmm(solution.mT, centred) if dual else solution.mT.contiguous()
    weight[failed], mean[failed] = 0, 0
    bias = -torch.bmm(mean, weight.mT)
    if several:
        return weight, bias[:, 0]
    bias = (settings.prior * frequency + bias)[:, 0]
    if settings.prior < 1:
        for teacher in (targets == targets[:, :1]).all(1).nonzero().flatten().tolist():
            bias[teacher] = _by_lot(inputs[teacher], classes)
    return weight, bias


def _by_lot(records: Tensor, classes: int) -> Tensor:
    """Return the bias of a teacher that has records of one class alone, and so no weights: one class has its vote.

    Which class that is says nothing of a query. Were it the teacher's own, all such votes would lean to the class that
    most parties have, and an ensemble of many would call everything by it. So it is drawn, from the teacher's own
    records and nothing else: numbers of teachers are alike at several parties, and one record still moves one teacher.
    """
    drawn = crc32(records.cpu().numpy().data) % classes
    return F.one_hot(torch.tensor(drawn), classes).to(records)


def by_adam(
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


class StackedAdam:
    """Kingma and Ba's Adam, in place, on tensors [problems, ...]; each problem counts its own steps.

    A problem is moved as `torch.optim.Adam` would move it alone: one that sits out a step keeps its moments.
    """

    def __init__(self, values: list[Tensor]) -> None:
        self.values = values
        self.first = [torch.zeros_like(value) for value in values]
        self.second = [torch.zeros_like(value) for value in values]
        self.count = torch.zeros(len(values[0]), dtype=torch.float64, device=values[0].device)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], active: Sequence[int], rate: float) -> None:
        """Move the problems `active` by their gradients, stacked as the values are; other rows are not looked at."""
        device = self.count.device
        rows = torch.tensor(list(active), device=device)
        everyone = len(rows) == len(self.count)
        self.count[rows] += 1
        length = rate / (1 - _BETA1 ** self.count[rows])
        correction = 1 / (1 - _BETA2 ** self.count[rows])
        for value, first, second, gradient in zip(self.values, self.first, self.second, gradients, strict=True):
            shape = (-1, *(1 for _ in range(1, value.dim())))
            own = gradient if everyone else gradient[rows]
            mean = (first if everyone else first[rows]) * _BETA1 + (1 - _BETA1) * own
            square = (second if everyone else second[rows]) * _BETA2 + (1 - _BETA2) * own * own
            own_length, own_correction = (each.to(value.dtype).view(shape) for each in (length, correction))
            step = own_length * mean / ((square * own_correction).sqrt() + _EPSILON)
            for target, new in ((first, mean), (second, square)):
                target[rows] = new
            value[rows] -= step
