"""The backbones by name. A new one is one function here: channels, size, seed and options in, network out."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.models.resnet import FEATURES as RESNET_FEATURES
from terrine.models.resnet import build_resnet
from terrine.models.scattering import Scattering
from terrine.randomness import derive_seed

Builder = Callable[..., tuple[nn.Module, int]]
"""(channels, size, seed, **options) -> (network, number of features)."""

SMALLEST, LARGEST = 8, 320


def _scattering(channels: int, size: int, seed: int, *, orientations: int = 8, projection: int | None = 1000) -> Any:
    network = Scattering(channels, size, seed, orientations=orientations, projection=projection)
    return network, network.feature_dim


def _resnet10(channels: int, size: int, seed: int, *, stem: str = "standard") -> Any:
    return build_resnet(10, channels, stem), RESNET_FEATURES


def _resnet18(channels: int, size: int, seed: int, *, stem: str = "standard") -> Any:
    return build_resnet(18, channels, stem), RESNET_FEATURES


BACKBONES: dict[str, Builder] = {
    "resnet10": _resnet10,
    "resnet18": _resnet18,
    "scattering": _scattering,
}


def build_backbone(kind: str, *, channels: int, size: int, seed: int, **options: Any) -> Backbone:
    """Return the backbone `kind` for images [B, channels, size, size], on the CPU, with initial weights from `seed`.

    The weights depend on (kind, channels, size, options, seed) alone; torch's global generator is left as it was.
    Raises SettingError for an unknown kind or option, naming the known ones, and for an impossible size.
    """
    if kind not in BACKBONES:
        raise SettingError(f"backbone: '{kind}' is unknown. Known: {', '.join(sorted(BACKBONES))}.")
    if not SMALLEST <= size <= LARGEST:
        raise SettingError(f"backbone: images of side {size}. Backbones take sides from {SMALLEST} to {LARGEST}.")
    if channels not in (1, 3):
        raise SettingError(f"backbone: images of {channels} channels. Backbones take 1 (grey) or 3 (colour).")
    builder = BACKBONES[kind]
    known = [
        parameter.name
        for parameter in inspect.signature(builder).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise SettingError(
            f"backbone: {kind} has no option '{unknown[0]}'. " + (f"It has: {', '.join(known)}." if known else "")
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, f"backbone {kind}"))
        network, features = builder(channels, size, seed, **options)
    architecture = {"kind": kind, "channels": channels, "size": size, "options": options}
    return Backbone(network, features, architecture)
