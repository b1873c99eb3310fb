"""Means over parts of maps: what adaptive pooling computes, as a product.

Its own backward pass on CUDA adds in whatever order threads come, so that two trainings differed.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def averaged(maps: Tensor, parts: int) -> Tensor:
    """Return the means [B, K, parts, parts] over parts of maps [B, K, h, w], never in half precision."""
    with torch.autocast(maps.device.type, enabled=False):
        maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
        impulses = (torch.eye(side, dtype=maps.dtype, device=maps.device) for side in maps.shape[-2:])
        rows, columns = (F.adaptive_avg_pool1d(impulse[None], parts)[0] for impulse in impulses)
        return (maps.flatten(2) @ torch.kron(rows, columns)).unflatten(2, (parts, parts))


class PartsAverage(nn.Module):
    """The layer of `averaged`."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, maps: Tensor) -> Tensor:
        return averaged(maps, self.parts)
