"""Where tensors live: CUDA, then MPS, then the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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


@contextmanager
def fixed_kernels(device: torch.device | str) -> Iterator[None]:
    """Run the block with convolutions on CUDA chosen by their shapes alone; on other devices nothing changes.

    cuDNN's autotuner times its kernels and takes the fastest that fits into the memory that is free: which one that is
    depends on what else runs, and so may the last bits of a sum. Here it is off, and kernels that add in an order of
    their own are not used. The switches are the process's.
    """
    import torch

    if torch.device(device).type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
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
