"""Choice of the torch device, and reproducible kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from terrine.determinism.parallel import FirstAndLast
from terrine.errors import SettingError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str = "auto") -> torch.device:
    """Return a torch device by name; `auto` is the first available of CUDA, MPS and CPU.

    Raises:
        SettingError: the name is invalid, or this machine has no such device.
    """
    import torch  # takes seconds

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingError(f"device={name}: not a torch device. Use auto, cpu, cuda, cuda:N or mps.") from error
    if not available.get(device.type, True):
        raise SettingError(f"device={name}: torch finds no {device.type.upper()} device. Use auto or cpu.")
    return device


def _fix_cudnn() -> AbstractContextManager[None]:
    import torch

    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    flags.__enter__()
    return flags


# The flags are global to the process. Threads that work on different GPUs overlap, so the first one to enter sets the
# flags and the last one to leave restores them.
_FIXED = FirstAndLast(_fix_cudnn, lambda flags: flags.__exit__(None, None, None))


@contextmanager
def fixed_kernels(device: torch.device | str) -> Iterator[None]:
    """Run the block with deterministic cuDNN kernels chosen by shape; devices other than CUDA are unaffected.

    cuDNN's autotuner picks the fastest kernel that fits into free memory, so the last bits of a sum would depend on
    other running work. Blocks of several threads may overlap.
    """
    import torch

    with _FIXED if torch.device(device).type == "cuda" else nullcontext():
        yield


def mixed_precision(device: torch.device | str) -> torch.autocast:
    """Run this block in bfloat16 on CUDA; other devices are unaffected.

    Weights are cast in each pass, because a captured CUDA graph cannot reuse the casts of another pass.
    """
    import torch

    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False)


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Run this block with separate global generators and `fixed_kernels`."""
    import torch

    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), fixed_kernels(device):
        yield
