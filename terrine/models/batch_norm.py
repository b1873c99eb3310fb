"""Batch normalisation under another rule: one place that stands between a network and `F.batch_norm`."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


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
