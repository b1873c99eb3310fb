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

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from terrine.errors import InputError, SettingError
from terrine.models.batch_norm import BatchNormMode, Call

Statistics = Literal["current", "original", "halfway"]

_logger = logging.getLogger(__name__)
_said: set[tuple[type[nn.Module], ...]] = set()
"""Architectures of which the log has said that they have no batch normalisation."""


def fewest(statistics: Statistics) -> int:
    """Return how many images a batch must hold: two where its own statistics have a part, for one image has none."""
    return 1 if statistics == "original" else 2


def has_batch_norm(module: nn.Module) -> bool:
    """Say whether `module` holds a batch normalisation, so whether the choice of statistics makes a difference."""
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


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
        if isinstance(layer, _BatchNorm) and (layers_to_record == "all" or not layer.affine)
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
