"""Where tensors live: CUDA, then MPS, then the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from terrine.determinism.parallel import FirstAndLast
from terrine.errors import SettingError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str = "auto") -> torch.device:
    """Return the device called `name`; `auto` takes CUDA, then MPS, then the CPU.

    Raises SettingError for a device this machine does not have.
    """
    import torch  # seconds, which whoever merely imports this module need not wait

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingError(f"device: '{name}' is no torch device. Use auto, cpu, cuda, cuda:N or mps.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"device: '{name}' was asked for, but torch sees no CUDA device. Use auto or cpu.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise SettingError(f"device: '{name}' was asked for, but torch sees no MPS device. Use auto or cpu.")
    return device


def _fix_cudnn() -> AbstractContextManager[None]:
    import torch

    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    flags.__enter__()
    return flags


# The flags belong to the process. Threads that work on different GPUs overlap, so the first sets them and the last
# restores them.
_FIXED = FirstAndLast(_fix_cudnn, lambda flags: flags.__exit__(None, None, None))


@contextmanager
def fixed_kernels(device: torch.device | str) -> Iterator[None]:
    """Run the block with deterministic cuDNN kernels chosen by shape; devices other than CUDA are unaffected.

    cuDNN's autotuner picks the fastest kernel that fits into free memory, so the last bits of a sum would depend on
    what else runs. Blocks of several threads may overlap.
    """
    import torch

    with _FIXED if torch.device(device).type == "cuda" else nullcontext():
        yield


def mixed_precision(device: torch.device | str) -> torch.autocast:
    """Run the block in bfloat16 where that is as good, on CUDA; on other devices as it is.

    Weights are cast anew in each pass: a pass that is captured as a CUDA graph could not take along casts of another.
    """
    import torch

    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False)


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Give the block its own global generators, and what `fixed_kernels` does; both are as before afterwards."""
    import torch

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), fixed_kernels(device):
        yield
