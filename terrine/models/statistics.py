"""Which statistics a model's batch normalisation uses when it is queried: its own, the current batch's, or between.

A network that was trained on one kind of image and is queried with another is off by the difference of their
statistics. Normalising with the *current* batch's mean and variance removes it (Anonymous 2025, section 3; Raikwar and
Mishra 2022). A prediction then depends on its batch, and on nothing else:

    >>> with batch_statistics(model, "current"):
    ...     features = model(batch)

Guarantees:
- No parameter, no running buffer and no flag of a model in evaluation mode is touched, not even for the time of the
  block. Two calls on one batch give one result, in any order and from any number of threads.
- Every layer that normalises through `torch.nn.functional.batch_norm` takes part: BatchNorm1d, 2d, 3d, SyncBatchNorm
  and timm's variants, however deep, also under `torch.func.functional_call` and `torch.func.vmap`.
- A batch of one has no variance and is refused.
- A model without batch normalisation gives the same result under both; the log says so once per architecture.

This is done where the arithmetic happens: a torch function mode, which belongs to the calling thread alone, intercepts
the call. Calling `.train()` instead would change the very model that is being queried.
"""

from __future__ import annotations

import logging
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

_logger = logging.getLogger(__name__)
_said: set[tuple[type[nn.Module], ...]] = set()
"""Architectures of which the log has said that they have no batch normalisation."""


def min_batch_size(statistics: Statistics) -> int:
    """Return how many images a batch must hold: two where its own statistics have a part, for one image has none."""
    return 1 if statistics == "original" else 2


def has_batch_norm(module: nn.Module) -> bool:
    """Say whether `module` holds a batch normalisation, so whether the choice of statistics makes a difference."""
    return any(isinstance(layer, BATCH_NORMS) for layer in module.modules())


def _say_without_batch_norm(module: nn.Module) -> None:
    """Log, once per architecture and process, that the choice of statistics makes no difference."""
    architecture = tuple(type(layer) for layer in module.modules())
    if architecture in _said or has_batch_norm(module):
        return
    _said.add(architecture)
    _logger.info(
        "%s (%d layers) has no batch normalisation: current and original statistics are the same for it.",
        type(module).__name__,
        len(architecture),
    )


@contextmanager
def batch_statistics(module: nn.Module, statistics: Statistics) -> Iterator[None]:
    """Run the block with `module` in evaluation mode and its batch normalisation on the statistics named.

    `current`: each batch is normalised with its own mean and (biased) variance, and must hold at least two images.
    `original`: the running statistics stored in the model. `halfway`: the batch's mean, and the geometric mean of both
    deviations, so that what hardly varies among these images is not blown up to the full. A module that is in training
    mode is switched to evaluation for the block and back afterwards; one that is in evaluation mode already is not
    touched at all.

    Raises SettingError for another name, and InputError when a batch of fewer than two meets its own statistics.
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
            _say_without_batch_norm(module)
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
    """Set the running statistics of layers without weights to the average over `batches`, tensors `module` accepts.

    This *does* change the module: it fixes what `original` means for batch normalisations that no training reaches,
    such as those of fixed features. Layers with weights keep the statistics they were trained with, unless
    `layers_to_record` is `all`: then every layer gets those of `batches`, which is what its running averages estimate
    after training (Wu and Johnson 2021, "precise" statistics). What `batches` show becomes part of the model.
    Raises InputError when there is no batch, or one of less than two images.
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
    """Set the running statistics of layers without weights to the average over batches of public uint8 `images`.

    It defines `original` statistics of a backbone that was never trained, such as the scattering transform; parts with
    weights keep what they have.

    batches: index arrays of at least two images each. The backbone is moved to `device` and ends in evaluation mode.
    Deterministic on the CPU. Raises InputError when there is no batch, or one too small.
    """
    backbone.to(device).eval()
    record_statistics(backbone, (torch.from_numpy(np.ascontiguousarray(images[batch])).to(device) for batch in batches))


class Call(NamedTuple):
    """What `torch.nn.functional.batch_norm` was called with, in its own order and with its own defaults."""

    input: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


class BatchNormMode(TorchFunctionMode):
    """In this block `normalise` takes the place of `torch.nn.functional.batch_norm`, in the calling thread alone.

    BatchNorm1d, 2d, 3d, SyncBatchNorm and timm's variants all go through that function, also under
    `torch.func.functional_call` and `torch.func.vmap`. Modules and their buffers are not touched.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.batch_norm:
            return self.normalise(Call(*args, **kwargs))
        return function(*args, **kwargs)

    @abstractmethod
    def normalise(self, call: Call) -> Tensor:
        """Return what the network is given instead; in here, `F.batch_norm` is torch's own."""


class _CurrentStatistics(BatchNormMode):
    """Let every batch normalisation in the block use its input's statistics and forget its running buffers."""

    def normalise(self, call: Call) -> Tensor:
        _check_batch(call.input)
        return F.batch_norm(call.input, None, None, call.weight, call.bias, training=True, eps=call.eps)


class _HalfwayStatistics(_CurrentStatistics):
    """Let every batch normalisation in the block centre its input, and go half of the way to the input's deviations."""

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
            f"A batch of shape {tuple(batch.shape)} has no statistics of its own. Under current statistics a batch "
            "needs at least 2 images (16 or more work well): fill it up with public images, or use original statistics."
        )


class grouped_statistics(BatchNormMode):
    """A block in which batch normalisation takes the statistics of each sample's group, e.g. of each teacher.

    A batch that mixes groups saves passes through a frozen network, but with ordinary current statistics one group's
    image would move another's features. Here every group has the same number of places in the batch, and every layer
    normalises a group with the moments of the images in it:

        images = ...                                    # [groups * places, C, H, W]
        with grouped_statistics([3, 0, 2], places=4):   # images at 0, 1, 2 and 8, 9; the other places are padding
            features = network(images)

    The shape of the pass follows from the numbers of groups and places, which are public, and not from the number of
    images of a group: so that number does not reach another group either, not even by the choice of a kernel for a
    batch of that size. A layer's output in a padded place is zero, and no gradient comes out of one. Only the calling
    thread is affected, and nothing in the network is changed.

    On a CPU groups are normalised one after the other by torch's own kernels: these read a group's values twice where
    products and sums of whole batches read them ten times. An accelerator takes all groups at once, because launches
    dominate there.

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
