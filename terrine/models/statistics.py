"""Batch normalisation by stored statistics, by those of the current batch, or by a mean of both.

A network that was trained on one kind of image and is queried with another is off by the difference of their
statistics. Normalising with the *current* batch's mean and variance removes it (Anonymous 2025, section 3; Raikwar and
Mishra 2022). With current statistics a prediction depends on its batch:

    >>> with batch_statistics(model, "current"):
    ...     features = model(batch)

Guarantees:
- No parameter, running buffer or flag of a model in evaluation mode is changed, not even within the block. Two calls on
  one batch give one result, in any order and from any number of threads.
- Every layer that normalises through `torch.nn.functional.batch_norm` takes part: BatchNorm1d, 2d, 3d, SyncBatchNorm
  and timm's variants, at any depth, under `torch.func.functional_call` and `torch.func.vmap` too.
- A batch of one has no variance and is refused.
- A model without batch normalisation gives the same result with all kinds of statistics.

A torch function mode, which belongs to the calling thread, intercepts the call. Calling `.train()` instead would change
the model that is being queried.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from terrine.errors import InputError, SettingError
from terrine.npy import Rows

if TYPE_CHECKING:
    from terrine.models.backbone import Backbone

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

Statistics = Literal["current", "original", "halfway"]


def min_batch_size(statistics: Statistics) -> int:
    """Return the minimum size of a batch: two if its statistics are used, since one image has none."""
    return 1 if statistics == "original" else 2


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether `module` contains a batch normalisation, so that the choice of statistics matters."""
    return any(isinstance(layer, BATCH_NORMS) for layer in module.modules())


@contextmanager
def batch_statistics(module: nn.Module, statistics: Statistics) -> Iterator[None]:
    """Run the block with `module` in evaluation mode and its batch normalisation on the given statistics.

    `current`: each batch is normalised by its mean and (biased) variance, and needs at least two images. `original`:
    the running statistics stored in the model. `halfway`: the batch's mean, and the geometric mean of both deviations,
    so that coordinates that hardly vary in the batch are not fully amplified. A module in training mode is switched to
    evaluation for the block; one in evaluation mode is not changed.

    Raises:
        SettingError: an unknown name.
        InputError: A batch with its own statistics has fewer than two images.
    """
    if statistics not in get_args(Statistics):
        raise SettingError(f"statistics: '{statistics}' is unknown. Use 'current', 'original' or 'halfway'.")
    training = [layer for layer in module.modules() if layer.training]
    for layer in training:
        layer.training = False
    try:
        if statistics == "original":
            yield
        else:
            with _CurrentStatistics() if statistics == "current" else _HalfwayStatistics():
                yield
    finally:
        for layer in training:
            layer.training = True


@torch.no_grad()
def record_statistics(
    module: nn.Module,
    batches: Iterable[Tensor],
    layers_to_record: Literal["without weights", "all"] = "without weights",
) -> None:
    """Set the running statistics of layers without weights to the average over `batches` of inputs of `module`.

    This changes the module: it defines `original` statistics for batch normalisations without training, such as those
    of fixed features. Layers with weights keep theirs, unless `layers_to_record` is `all`: then every layer gets those
    of `batches`, which its running averages estimate in training (Wu and Johnson 2021, "precise" statistics). The
    statistics of `batches` become part of the model.

    Raises:
        InputError: No batch was given, or one has fewer than two images.
    """
    layers = [
        layer
        for layer in module.modules()
        if isinstance(layer, BATCH_NORMS) and (layers_to_record == "all" or not layer.affine)
    ]
    momenta = [layer.momentum for layer in layers]
    training = [part for part in module.modules() if part.training]
    module.eval()
    count = 0
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # a plain average of all batches
            layer.training = True
        for batch in batches:
            _check_batch(batch)
            module(batch)
            count += 1
    finally:
        module.eval()
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for part in training:
            part.training = True
    if count == 0:
        raise InputError("Reference statistics need at least one batch of images, and none was given.")


def fit_reference(
    backbone: Backbone, images: Rows, batches: Sequence[np.ndarray], device: torch.device | str = "cpu"
) -> None:
    """Define `original` statistics of layers without weights as the average over batches of public uint8 `images`.

    The backbone is moved to `device` and set to evaluation mode. Deterministic on the CPU.

    Args:
        backbone: Backbone whose statistics are set.
        images: An array or a memory map, [N, C, H, W].
        batches: Index arrays of at least two images each.
        device: Device of the computation.

    Raises:
        InputError: No batch was given, or one is too small.
    """
    backbone.to(device).eval()
    record_statistics(backbone, (torch.from_numpy(np.ascontiguousarray(images[batch])).to(device) for batch in batches))


class Call(NamedTuple):
    """Arguments of `torch.nn.functional.batch_norm`, with its order and defaults."""

    input: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


class BatchNormMode(TorchFunctionMode):
    """A block in which `normalise` replaces `torch.nn.functional.batch_norm` in the calling thread; see the module."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.batch_norm:
            return self.normalise(Call(*args, **kwargs))
        return function(*args, **kwargs)

    @abstractmethod
    def normalise(self, call: Call) -> Tensor:
        """Return the replacement's result; within this method, `F.batch_norm` is torch's own."""


class _CurrentStatistics(BatchNormMode):
    """Normalise every input by its own statistics, without the running buffers."""

    def normalise(self, call: Call) -> Tensor:
        _check_batch(call.input)
        return F.batch_norm(call.input, None, None, call.weight, call.bias, training=True, eps=call.eps)


class _HalfwayStatistics(_CurrentStatistics):
    """Centre every input, and divide by the geometric mean of its deviation and the stored one."""

    def normalise(self, call: Call) -> Tensor:
        if call.running_var is None:
            return super().normalise(call)
        _check_batch(call.input)
        others = [axis for axis in range(call.input.dim()) if axis != 1]
        variance, mean = torch.var_mean(call.input, others, correction=0)
        product = (variance + call.eps) * (call.running_var + call.eps)
        return F.batch_norm(call.input, mean, product.sqrt(), call.weight, call.bias, eps=0)


def _check_batch(batch: Tensor) -> None:
    if batch.shape[0] < 2:
        raise InputError(
            f"A batch of shape {tuple(batch.shape)} has no batch statistics. With current statistics a batch "
            "needs at least 2 images (16 or more work well): fill it up with public images, or use original statistics."
        )


class grouped_statistics(BatchNormMode):
    """A block in which batch normalisation uses the statistics of each sample's group, such as those of a teacher.

    A batch that mixes groups saves passes through a frozen network, but with ordinary current statistics one group's
    image would change another's features. Here every group has the same number of places in the batch, and layers
    normalise a group with the moments of its images:

        images = ...                                    # [groups * places, C, H, W]
        with grouped_statistics([3, 0, 2], places=4):   # images at 0, 1, 2 and 8, 9; the other places are padding
            features = network(images)

    The numbers of groups and places, which are public, determine the shape of the pass, and the number of a group's
    images does not. So that number does not affect another group, not even by the choice of a kernel. A layer's output
    in a padded place is zero and has no gradient. Only the calling thread is affected, and the network is not changed.

    On a CPU torch's kernels normalise one group after the other, since they read values twice, and products and sums of
    whole batches read them ten times. An accelerator processes all groups at once, since launches dominate there.

    Args:
        counts: Number of images of each group, which occupy the first of its `places`.
        at_once: Whether all groups are processed at once; None: only on an accelerator.

    Raises:
        InputError: A group has one image, which has no variance, or more images than places.
    """

    def __init__(self, counts: Sequence[int], places: int, *, at_once: bool | None = None) -> None:
        super().__init__()
        if 1 in counts:
            raise InputError("A group of one image has no batch statistics: groups need 2 images or more.")
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
        over = (1, *range(3, groups.dim()))  # all axes but groups and channels
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
