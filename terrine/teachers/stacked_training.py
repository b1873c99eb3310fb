"""Training of many small models at once: linear heads for teachers with equally many records, and stacked Adam.

Batched products treat their matrices separately, so a head is the same to the last bit in every stack.
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

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's usual defaults


def by_ridge(inputs: Tensor, targets: Tensor, classes: int, settings: LinearTeachers) -> tuple[Tensor, Tensor]:
    """Return weight [T, C, D] and bias [T, C] that minimise ‖Y − X Wᵀ − b‖² + ridge · s · ‖W‖² for one-hot Y.

    A share 1 − `prior` of the class frequencies is subtracted from b. A query's scores then sum to `prior`, and a class
    without records has score 0, so the teacher never votes for it. If all records have one class and `prior` is below
    1, the teacher votes for a pseudorandom class. With deformed copies the penalty grows with n, so that identical
    copies change nothing.

    Here s is the mean squared norm of a centred record. With fewer records than features the n x n dual is solved,
    (X Xᵀ + ridge s) A = Y, Wᵀ = Xᵀ A, otherwise the D x D primal.

    Args:
        inputs: Features of the records, [T, n, D].
        targets: Labels [T, n], or for findings [T, n, C]; b then makes the score of a mean record 0.
        classes: Number of classes C.
        settings: Provides `ridge`, `prior` and the number of deformed `copies`.
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
    # Double precision if available, since a small penalty leaves the system ill-conditioned.
    gram = gram.to(torch.float32 if inputs.device.type == "mps" else torch.float64)
    diagonal = gram.diagonal(dim1=1, dim2=2)
    # A teacher with identical records has scale 0 and learns only the label frequencies.
    scale = diagonal.sum(1, keepdim=True) / records
    diagonal += settings.ridge * (1 + settings.copies) * torch.where(scale > 0, scale, 1.0)
    factor, failed = torch.linalg.cholesky_ex(gram)
    # If squares of records overflow, the head is zero and only the label frequencies remain.
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
            # A vote for this class would not depend on the query, and many such votes would bias all answers towards
            # the most common class. So the vote is pseudorandom. It depends only on the teacher's records, since
            # teacher numbers repeat among parties.
            drawn = torch.tensor(crc32(inputs[teacher].cpu().numpy().data) % classes)
            bias[teacher] = F.one_hot(drawn, classes).to(bias)
    return weight, bias


def by_adam(
    inputs: Tensor, targets: Tensor, classes: int, settings: LinearTeachers, seed: int, teachers: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return weight [T, C, D] and bias [T, C] after Adam on each teacher's own shuffled batches; see `by_ridge`."""
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
            if several:  # avoids torch.sigmoid, whose last bit may depend on an element's position (`_adam_step`)
                likely = torch.softmax(torch.stack([logits, torch.zeros_like(logits)], dim=-1), dim=-1)[..., 0]
            else:
                likely = torch.softmax(logits, dim=2)
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


def _take(values: Tensor, index: Tensor) -> Tensor:
    """Return values [T, n, K] at each teacher's own rows [T, b]: [T, b, K]."""
    offset = torch.arange(len(values), device=values.device)[:, None] * values.shape[1]
    return values.flatten(0, 1)[index + offset]


def _adam_step(state: tuple[Tensor, Tensor, Tensor], gradient: Tensor, learning_rate: float, step: int) -> None:
    """Move a parameter by Adam, in place (Kingma and Ba 2015, algorithm 1).

    Every arithmetic operation is rounded separately. Fused multiply-adds may be used in an array's vectorised body but
    not in its tail, so a teacher's last bit would depend on its position in the stack.
    """
    value, first, second = state
    first.mul_(_BETA1).add_(gradient * (1 - _BETA1))
    second.mul_(_BETA2).add_((gradient * gradient).mul_(1 - _BETA2))
    size = (second / (1 - _BETA2**step)).sqrt_().add_(_EPSILON)
    value.sub_((first * (learning_rate / (1 - _BETA1**step))).div_(size))


class StackedAdam:
    """Kingma and Ba's Adam, in place, on tensors [problems, ...]; each problem counts its own steps.

    Each problem is updated as by a separate `torch.optim.Adam`: if it skips a step, its moments stay the same.
    """

    def __init__(self, values: list[Tensor]) -> None:
        self.values = values
        self.first = [torch.zeros_like(value) for value in values]
        self.second = [torch.zeros_like(value) for value in values]
        self.count = torch.zeros(len(values[0]), dtype=torch.float64, device=values[0].device)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], active: Sequence[int], rate: float) -> None:
        """Update the problems `active` by their gradients, stacked like the values; other rows are ignored."""
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
