"""Statistics for batches that are too small to have good ones of their own.

A student normalises with the statistics of its batch (`terrine.models.statistics`). One image has none, and those of
four are poor. Public reference images help, but not as equals: sixteen of them beside one image of another kind would
drown it. So they enter with a weight, like a prior that counts as a fixed number of images:

    mean = (sum over own images + r · average over reference images) / (n + r),    variance likewise about that mean.

Three normalisations follow, each a context manager around a network in evaluation mode:

- `weighted_statistics`: every layer normalises with weighted statistics of the batch, own and reference images in it;
- `single_statistics`: every image normalises with its own statistics and, weighted, the recorded ones of the reference
  images. Nothing depends on any other image;
- `freeze_statistics` records the reference images' statistics in the network's running buffers; used alone (`original`
  of `terrine.models.statistics`) they make an ordinary, fixed function.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from terrine.errors import InputError
from terrine.models.batch_norm import BatchNormMode, Call

Moments = Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor]]
"""(input [B, C, ...], running mean [C], running variance [C]) -> mean and variance that broadcast with the input."""


@contextmanager
def weighted_statistics(weights: Tensor) -> Iterator[None]:
    """Normalise, in the block, batches [B, ...] with statistics in which image i has weight `weights[i]`.

    weights: float [B], not negative, with sum 1. Equal weights are current statistics.
    """

    def moments(input: Tensor, mean: Tensor | None, variance: Tensor | None) -> tuple[Tensor, Tensor]:
        places = tuple(range(2, input.dim()))
        column = weights.to(input).view(-1, 1, *(1 for _ in places))
        own = input.mean(places, keepdim=True) if places else input
        weighted_mean = (column * own).sum(0, keepdim=True)
        square = (input - weighted_mean).square()
        square = square.mean(places, keepdim=True) if places else square
        return weighted_mean, (column * square).sum(0, keepdim=True)

    with _Normalised(moments):
        yield


@contextmanager
def single_statistics(reference_weight: float) -> Iterator[None]:
    """Normalise, in the block, each image with its own and the recorded statistics, which count as so many images.

    An image's own statistics in a layer are those over its places; where there is one place, its variance is zero.
    """
    share = reference_weight / (1 + reference_weight)

    def moments(input: Tensor, mean: Tensor | None, variance: Tensor | None) -> tuple[Tensor, Tensor]:
        if mean is None or variance is None:
            raise InputError("A layer has no recorded statistics. Record those of reference images first.")
        places = tuple(range(2, input.dim()))
        shape = (1, -1, *(1 for _ in places))
        mean, variance = mean.to(input).view(shape), variance.to(input).view(shape)
        own = input.mean(places, keepdim=True) if places else input
        spread = (input - own).square().mean(places, keepdim=True) if places else torch.zeros_like(input)
        between = share * (1 - share) * (own - mean).square()
        return (1 - share) * own + share * mean, (1 - share) * spread + share * variance + between

    with _Normalised(moments):
        yield


@torch.no_grad()
def freeze_statistics(network: nn.Module, images: Tensor) -> None:
    """Set the running statistics of every batch normalisation to those of `images`, in one exact pass, in place.

    images: a batch [B, ...] that `network` accepts, B >= 2. Afterwards the network's original statistics give for
    `images` what their current statistics give: means and biased variances of the whole batch, layer after layer, each
    computed from the outputs of the layers before it as they now are. (An average over batches, as training leaves
    behind, is close to that and not equal.) Raises InputError for fewer than two images.
    """
    if len(images) < 2:
        raise InputError(f"{len(images)} reference image(s) have no statistics. Give at least 2; 16 or more work well.")

    def record(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1).double()
        layer.running_mean = values.mean(1).to(inputs[0])
        layer.running_var = values.var(1, unbiased=False).to(inputs[0])

    layers = [layer for layer in network.modules() if isinstance(layer, _BatchNorm)]
    hooks = [layer.register_forward_pre_hook(record) for layer in layers]
    training = [part for part in network.modules() if part.training]
    network.eval()
    try:
        network(images)
    finally:
        for hook in hooks:
            hook.remove()
        for part in training:
            part.training = True


class _Normalised(BatchNormMode):
    """Let every batch normalisation in the block use the moments that a function gives; buffers are not touched."""

    def __init__(self, moments: Moments) -> None:
        super().__init__()
        self.moments = moments

    def normalise(self, call: Call) -> Tensor:
        mean, variance = self.moments(call.input, call.running_mean, call.running_var)
        result = (call.input - mean) * (variance + call.eps).rsqrt()
        shape = (1, -1, *(1 for _ in range(2, call.input.dim())))
        if call.weight is not None:
            result = result * call.weight.to(result).view(shape)
        return result if call.bias is None else result + call.bias.to(result).view(shape)
