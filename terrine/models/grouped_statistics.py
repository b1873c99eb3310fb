"""Batch normalisation of several parties' images in one pass, each party by its own statistics.

A batch that mixes parties saves passes through a frozen network, but ordinary current statistics would couple them:
one party's image would move another's features. Here every layer normalises a sample with the moments of the samples
of its own group alone, so a group's features are those of a pass of its own (up to the rounding of its sums):

    groups = torch.tensor([0, 0, 0, 4, 4])               # of each sample in the batch
    with grouped_statistics(groups):
        features = network(images)

The calling thread alone is affected, and nothing in the network is touched.

On a CPU, groups whose samples lie side by side are normalised one after the other by torch's own kernels: these read a
group's values twice where products and sums of whole batches read them ten times. An accelerator takes all groups at
once, since there launches are what costs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.errors import InputError
from terrine.models.batch_norm import BatchNormMode, Call


class grouped_statistics(BatchNormMode):
    """A block in which batch normalisation takes the statistics of each sample's group.

    groups: int64 [batch], any numbers. Raises InputError for a group of one sample, which has no variance.
    """

    def __init__(self, groups: Tensor) -> None:
        super().__init__()
        _, self.index, counts = torch.unique(groups, return_inverse=True, return_counts=True)
        if len(counts) and int(counts.min()) < 2:
            raise InputError("A group of one image has no statistics of its own: batches need 2 images or more.")
        self.counts = counts
        in_order = groups.device.type == "cpu" and bool((self.index.diff() >= 0).all())
        self.sizes: list[int] | None = counts.tolist() if in_order else None

    def normalise(self, call: Call) -> Tensor:
        """Return the input, normalised group by group; moments are taken in float32 at least."""
        values = call.input.to(torch.promote_types(call.input.dtype, torch.float32))
        if len(values) != len(self.index):
            raise InputError(f"A batch of {len(values)} images was given for groups of {len(self.index)}.")
        if self.sizes is not None:
            weight, bias = (None if own is None else own.to(values.dtype) for own in (call.weight, call.bias))
            parts = [
                F.batch_norm(part, None, None, weight, bias, training=True, eps=call.eps)
                for part in values.split(self.sizes)
            ]
            return torch.cat(parts).to(call.input.dtype)
        shape = (len(self.counts), values.shape[1], *(1 for _ in range(2, values.dim())))
        centred = values - self._group_mean(values).view(shape)[self.index]
        scale = (self._group_mean(centred.square()) + call.eps).rsqrt()
        if call.weight is not None:
            scale = scale * call.weight
        result = centred * scale.view(shape)[self.index]
        if call.bias is not None:
            result = result + call.bias.view(1, -1, *shape[2:])
        return result.to(call.input.dtype)

    def _group_mean(self, values: Tensor) -> Tensor:
        """Return the mean [groups, C] over a group's samples and positions of values [batch, C, ...]."""
        own = values.flatten(2).mean(dim=2) if values.dim() > 2 else values
        total = own.new_zeros((len(self.counts), own.shape[1])).index_add(0, self.index, own)
        return total / self.counts[:, None]
