"""Batch normalisation of several parties' images in one pass, each party by its own statistics.

A batch that mixes parties saves passes through a frozen network, but ordinary current statistics would couple them:
one party's image would move another's features. Here every party has a group of places in the batch, as many as every
other, and every layer normalises a group with the moments of the images in it alone:

    images = ...                                    # [groups * places, C, H, W]
    with grouped_statistics([3, 0, 2], places=4):   # images at 0, 1, 2 and 8, 9; the other places are padding
        features = network(images)

The shape of the pass follows from the numbers of groups and places, which are public, and not from how many images a
party has: so that number does not reach another party either, not even by the choice of a kernel for a batch of that
size. What a layer gives in a padded place is zero, and no gradient comes out of one.

The calling thread alone is affected, and nothing in the network is touched.

On a CPU groups are normalised one after the other by torch's own kernels: these read a group's values twice where
products and sums of whole batches read them ten times. An accelerator takes all groups at once, since there launches
are what costs.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.errors import InputError
from terrine.models.batch_norm import BatchNormMode, Call


class grouped_statistics(BatchNormMode):
    """A block in which batch normalisation takes the statistics of each sample's group.

    counts: how many images each group has, the first of its `places`. at_once: normalise all groups in one
    computation; None does so on an accelerator alone. Raises InputError for a group of one image, which has no
    variance, and for one with more images than places.
    """

    def __init__(self, counts: Sequence[int], places: int, *, at_once: bool | None = None) -> None:
        super().__init__()
        if 1 in counts:
            raise InputError("A group of one image has no statistics of its own: batches need 2 images or more.")
        if max(counts, default=0) > places:
            raise InputError(f"A group of {max(counts)} images does not fit into {places} places.")
        self.counts, self.places, self.at_once = list(counts), places, at_once

    def normalise(self, call: Call) -> Tensor:
        """Return the input, normalised group by group; moments are taken in float32 at least."""
        values = call.input.to(torch.promote_types(call.input.dtype, torch.float32))
        if len(values) != len(self.counts) * self.places:
            raise InputError(
                f"A batch of {len(values)} images was given for {len(self.counts)} groups of {self.places} places."
            )
        weight, bias = (None if own is None else own.to(values.dtype) for own in (call.weight, call.bias))
        at_once = values.device.type != "cpu" if self.at_once is None else self.at_once
        normalised = self._at_once if at_once else self._one_by_one
        return normalised(values, weight, bias, call.eps).to(call.input.dtype)

    def _one_by_one(self, values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        parts = []
        for count, group in zip(self.counts, values.split(self.places), strict=True):
            if count:
                parts.append(F.batch_norm(group[:count], None, None, weight, bias, training=True, eps=eps))
            if count < self.places:
                parts.append(torch.zeros_like(group[count:]))
        return torch.cat(parts)

    def _at_once(self, values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        groups = values.unflatten(0, (len(self.counts), self.places))
        counts = torch.tensor(self.counts, device=values.device).view(-1, *(1 for _ in groups.shape[1:]))
        present = torch.arange(self.places, device=values.device).view(1, -1, *(1 for _ in groups.shape[2:])) < counts
        over = (1, *range(3, groups.dim()))  # all but groups and channels
        size = counts.clamp_min(1) * groups[0, 0, 0].numel()
        zero = groups.new_zeros(())
        mean = torch.where(present, groups, zero).sum(over, keepdim=True) / size
        centred = torch.where(present, groups - mean, zero)
        result = centred * (centred.square().sum(over, keepdim=True) / size + eps).rsqrt()
        channels = (1, 1, -1, *(1 for _ in groups.shape[3:]))
        if weight is not None:
            result = result * weight.view(channels)
        if bias is not None:
            result = result + bias.view(channels)
        return torch.where(present, result, zero).flatten(0, 1)
