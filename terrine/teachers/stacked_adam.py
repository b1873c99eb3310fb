"""Adam over many small problems at once, of which not all take part in every step."""

from collections.abc import Sequence

import torch
from torch import Tensor

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's own, as everywhere


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
