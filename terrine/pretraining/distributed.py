"""Batches distributed over several processes, so that SimCLR gives the result of one process.

Two parts of SimCLR depend on the whole batch: the contrastive loss and batch normalisation. Both are global here,
with gradients, over any backend (gloo on CPUs, NCCL on GPUs). Every process computes the same loss of the whole batch;
DistributedDataParallel averages the gradients, so each process holds the gradient of that one loss.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from terrine.models.statistics import BatchNormMode, Call


def world() -> tuple[int, int]:
    """Return (rank, number of processes), or (0, 1) if torch.distributed is not in use."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows of all processes [processes * B, ...] in the order of their ranks; gradients flow back."""
    if world()[1] == 1:
        return rows
    return _Gather.apply(rows)


class _Gather(torch.autograd.Function):
    """Gather the rows of all processes; the gradient of a row is the sum over all processes."""

    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        rank, processes = world()
        context.mine = slice(rank * len(rows), (rank + 1) * len(rows))
        parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(processes)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[context.mine]


class _Sum(torch.autograd.Function):
    """Sum over all processes; gradients are summed as well."""

    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return _Sum.forward(context, gradients[0])


class GlobalBatchNorm(BatchNormMode):
    """In this block, batch normalisation in training uses the statistics of all processes' batches together.

    All processes must have the same number of images. torch's SyncBatchNorm works only on GPUs.
    """

    def normalise(self, call: Call) -> Tensor:
        return _over_all_processes(call) if call.training and world()[1] > 1 else F.batch_norm(*call)


def _over_all_processes(call: Call) -> Tensor:
    """Return the result of batch normalisation in training with moments over all processes."""
    input, running_mean, running_var, weight, bias, _, momentum, eps = call
    values = input.float()
    axes = [0, *range(2, input.dim())]
    shape = [1, -1] + [1] * (input.dim() - 2)
    processes = world()[1]
    count = processes * values.numel() // values.shape[1]
    mean = _Sum.apply(values.mean(axes)) / processes
    centred = values - mean.view(shape)
    variance = _Sum.apply(centred.square().mean(axes)) / processes
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_(variance.to(running_var.dtype) * (count / (count - 1)), momentum)
    result = centred * (variance + eps).rsqrt().view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    return result.to(input.dtype)
