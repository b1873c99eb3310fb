"""Where tensors live: CUDA, then MPS, then the CPU."""

from __future__ import annotations

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
