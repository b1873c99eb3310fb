"""The student as one network from images to probabilities, for each kind of statistics.

Batch statistics of one image do not exist, and those of four are poor (`terrine.models.statistics`). Public reference
images help, but sixteen of them would dominate one image of another kind. Therefore they have a weight, like a prior
that counts as a fixed number of images:

    mean = (sum over own images + r · average over reference images) / (n + r),    variance likewise about that mean.

Three normalisations follow, each a context manager around a network in evaluation mode:

- `weighted_statistics`: every layer normalises with weighted statistics of the batch, including reference images;
- `single_statistics`: every image is normalised with its own statistics and, weighted, the recorded ones of the
  reference images, independently of all other images;
- `freeze_statistics` stores the reference images' statistics in the running buffers; with `original` statistics
  (`terrine.models.statistics`) the network is then a fixed function.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from terrine.errors import InputError
from terrine.heads import Head, probabilities
from terrine.models.backbone import Backbone, as_float
from terrine.models.statistics import BATCH_NORMS, BatchNormMode, Call, batch_statistics

Moments = Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor]]
"""(input [B, C, ...], running mean [C], running variance [C]) -> mean and variance that broadcast with the input."""

ServingStatistics: TypeAlias = Literal["released", "current", "single", "frozen", "original"]
"""Statistics of batch normalisation. released: noisy ones of the private images (`terrine.models.released_statistics`);
current: the request's, with reference images if it is small; single: each image's and the reference images'; frozen:
the reference images'; original: those of the backbone's pretraining."""

REFERENCE_WEIGHT = 2.0
"""Weight of all reference images together, in images (measured: docs/serving.md)."""


class StudentNetwork(nn.Module):
    """Network from images [B, C, H, W], uint8 or float in [0, 1], to class probabilities [B, classes], float32.

    One call is one batch. Under `current` statistics a row depends on the whole batch, otherwise on its image only. The
    backbone is copied.

    Args:
        backbone: The backbone.
        head: The head.
        statistics: Kind of statistics.
        reference: Public images [R, C, H, W], needed for `single` and `frozen`.
        reference_weight: Weight of all reference images together, in images.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        statistics: ServingStatistics,
        reference: Tensor | None = None,
        reference_weight: float = REFERENCE_WEIGHT,
    ) -> None:
        super().__init__()
        self.reference_weight = reference_weight
        self.statistics = statistics
        self.backbone = copy.deepcopy(backbone.network)
        self.head, self.findings = head.module(), head.findings
        if statistics in ("single", "frozen"):
            if reference is None:
                raise ValueError(f"{statistics} statistics are made of reference images, and none were given")
            freeze_statistics(self.backbone, as_float(reference))
        self.requires_grad_(False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        images = as_float(images)
        with self._statistics():
            features = self.backbone(images)
        return probabilities(self.head(features.float()), self.findings)

    @torch.no_grad()
    def filled(self, images: Tensor, reference: Tensor) -> Tensor:
        """Return probabilities [B, classes] of a small batch, normalised together with weighted reference images.

        Args:
            images: [B, C, H, W].
            reference: [R, C, H, W].
        """
        count, others = len(images), len(reference)
        weights = torch.full((count + others,), 1 / (count + self.reference_weight), dtype=torch.float64)
        weights[count:] *= self.reference_weight / others
        batch = torch.cat([as_float(images), as_float(reference)])
        with weighted_statistics(weights.to(batch)):
            features = self.backbone(batch)[:count]
        return probabilities(self.head(features.float()), self.findings)

    def _statistics(self) -> AbstractContextManager[None]:
        if self.statistics == "current":
            return batch_statistics(self.backbone, "current")
        return single_statistics(self.reference_weight) if self.statistics == "single" else nullcontext()


@contextmanager
def weighted_statistics(weights: Tensor) -> Iterator[None]:
    """Normalise batches [B, ...] with statistics in which image i has weight `weights[i]`.

    Args:
        weights: float [B], non-negative, with sum 1. Equal weights give current statistics.
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
    """Normalise each image with its own and the recorded statistics, which count as `reference_weight` images.

    An image's own statistics in a layer are taken over its positions; for a single position the variance is zero.
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
    """Set the running statistics of every batch normalisation to those of `images`, in place.

    Afterwards the original statistics give the same outputs for `images` as current statistics: means and biased
    variances of the whole batch, each layer computed from the outputs of the updated layers before it.

    Args:
        network: The network.
        images: A batch [B, ...] that `network` accepts, B >= 2.

    Raises:
        InputError: Fewer than two images were given.
    """
    if len(images) < 2:
        raise InputError(f"{len(images)} reference image(s) have no statistics. Give at least 2; 16 or more work well.")

    def record(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1).double()
        layer.running_mean = values.mean(1).to(inputs[0])
        layer.running_var = values.var(1, unbiased=False).to(inputs[0])

    layers = [layer for layer in network.modules() if isinstance(layer, BATCH_NORMS)]
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
    """Batch normalisation with the moments that a function returns; buffers are not changed."""

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
