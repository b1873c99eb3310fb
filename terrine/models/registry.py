"""Backbones by name, or from the description of a stored one.

Any architecture that timm knows can be named as a kind of its own (`resnet26`, `efficientnet_b0`, ...).
"""

import inspect
import threading
from typing import Any

import torch

from terrine.determinism.randomness import derive_seed
from terrine.errors import SettingError
from terrine.geometry import Size, in_json, sides
from terrine.models.architecture import ARCHITECTURES
from terrine.models.backbone import Backbone
from terrine.models.identity import ColumnsBackbone
from terrine.models.kinds.timm import known_to_timm

SMALLEST, LARGEST = 8, 320

_initialising = threading.RLock()
"""Initial weights come from torch's global generator: one thread at a time."""


def build_backbone(kind: str, *, channels: int, size: Size, seed: int, **options: Any) -> Backbone:
    """Return the backbone `kind` for images [B, channels, *size], on the CPU, with initial weights from `seed`.

    The weights depend on (kind, channels, size, options, seed) alone; torch's global generator is left as it was.
    `columns` is the backbone of a table of `channels` columns, with `size` 1, and takes rows instead of images.
    Raises SettingError for an unknown kind or option, naming the known ones, and for an impossible size.
    """
    if kind == "columns":
        return ColumnsBackbone(channels)
    if kind not in ARCHITECTURES.names():
        if not known_to_timm(kind):
            raise SettingError(
                f"backbone: '{kind}' is unknown. Known: {', '.join(ARCHITECTURES.names())}, and every architecture of "
                "timm."
            )
        return build_backbone("timm", channels=channels, size=size, seed=seed, architecture=kind, **options)
    if not SMALLEST <= min(sides(size)) <= max(sides(size)) <= LARGEST:
        raise SettingError(
            f"backbone: images of side {in_json(size)}. Backbones take sides from {SMALLEST} to {LARGEST}."
        )
    if channels not in (1, 3):
        raise SettingError(f"backbone: images of {channels} channels. Backbones take 1 (grey) or 3 (colour).")
    network = ARCHITECTURES.of(kind).network
    known = inspect.getfullargspec(network).kwonlyargs
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise SettingError(
            f"backbone: {kind} has no option '{unknown[0]}'. It has {', '.join(known) if known else 'none'}."
        )
    with _initialising, torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, f"backbone {kind}"))
        built, features = network(kind, channels, size, seed, **options)
    return Backbone(built, features, {"kind": kind, "channels": channels, "size": in_json(size), "options": options})
