"""The backbones by name. A new one is one function and one line here: channels, size, seed and options in, network out.

Any architecture that timm knows can be named as a kind of its own (`resnet26`, `efficientnet_b0`, ...).
"""

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from terrine import vision
from terrine.determinism.randomness import derive_seed
from terrine.errors import SettingError
from terrine.models import cryptonet, densenet, pate_cnn, resnet, small_cnn, vgg
from terrine.models.backbone import Backbone
from terrine.models.concatenated import Concatenated
from terrine.models.cryptonet import build_cryptonet
from terrine.models.densenet import build_densenet121
from terrine.models.identity import Identity
from terrine.models.pate_cnn import build_pate_cnn
from terrine.models.resnet import build_resnet
from terrine.models.scattering import Scattering
from terrine.models.small_cnn import build_small_cnn
from terrine.models.timm_network import TimmNetwork
from terrine.models.vgg import build_vgg9

Builder = Callable[..., tuple[nn.Module, int]]
"""(channels, size, seed, **options) -> (network, number of features)."""

SMALLEST, LARGEST = 8, 320

_initialising = threading.RLock()
"""Initial weights come from torch's global generator: one thread at a time."""

_SCATTERING_AND_RESNET = ({"kind": "scattering"}, {"kind": "resnet18"})


def _scattering(
    channels: int, size: int, seed: int, *, orientations: int = 8, projection: int | None = 1000
) -> tuple[nn.Module, int]:
    network = Scattering(channels, size, seed, orientations=orientations, projection=projection)
    return network, network.feature_dim


def _resnet10(channels: int, size: int, seed: int, *, stem: str = "standard") -> tuple[nn.Module, int]:
    return build_resnet(10, channels, stem), resnet.FEATURES


def _resnet18(channels: int, size: int, seed: int, *, stem: str = "standard") -> tuple[nn.Module, int]:
    return build_resnet(18, channels, stem), resnet.FEATURES


def _small_cnn(channels: int, size: int, seed: int) -> tuple[nn.Module, int]:
    return build_small_cnn(channels), small_cnn.FEATURES


def _cryptonet(channels: int, size: int, seed: int) -> tuple[nn.Module, int]:
    return build_cryptonet(channels, size), cryptonet.FEATURES


def _pate_cnn(channels: int, size: int, seed: int) -> tuple[nn.Module, int]:
    return build_pate_cnn(channels, size), pate_cnn.FEATURES


def _vgg9(channels: int, size: int, seed: int) -> tuple[nn.Module, int]:
    return build_vgg9(channels), vgg.FEATURES


def _densenet121(channels: int, size: int, seed: int, *, stem: str = "small") -> tuple[nn.Module, int]:
    return build_densenet121(channels, size, stem), densenet.FEATURES


def _tiny_vit(channels: int, size: int, seed: int, *, enlarge: int | None = None) -> tuple[nn.Module, int]:
    return _timm(channels, size, seed, architecture="tiny_vit_21m_224", enlarge=enlarge)


def _timm(
    channels: int, size: int, seed: int, *, architecture: str, enlarge: int | None = None
) -> tuple[nn.Module, int]:
    network = TimmNetwork(architecture, channels, size, enlarge)
    return network, network.feature_dim


def _concatenated(
    channels: int, size: int, seed: int, *, parts: Sequence[Mapping[str, Any]] = _SCATTERING_AND_RESNET
) -> tuple[nn.Module, int]:
    """parts: {"kind": a name, option: value, ...} each."""
    built = []
    for part in parts:
        options = {key: value for key, value in part.items() if key != "kind"}
        built.append(build_backbone(part["kind"], channels=channels, size=size, seed=seed, **options))
    widths = [backbone.feature_dim for backbone in built]
    return Concatenated([backbone.network for backbone in built], widths), sum(widths)


BACKBONES: dict[str, Builder] = {
    "concatenated": _concatenated,
    "cryptonet": _cryptonet,
    "densenet121": _densenet121,
    "pate_cnn": _pate_cnn,
    "resnet10": _resnet10,
    "resnet18": _resnet18,
    "scattering": _scattering,
    "small_cnn": _small_cnn,
    "timm": _timm,
    "tiny_vit": _tiny_vit,
    "vgg9": _vgg9,
}


def build_backbone(kind: str, *, channels: int, size: int, seed: int, **options: Any) -> Backbone:
    """Return the backbone `kind` for images [B, channels, size, size], on the CPU, with initial weights from `seed`.

    The weights depend on (kind, channels, size, options, seed) alone; torch's global generator is left as it was.
    `columns` is the backbone of a table of `channels` columns, with `size` 1, and takes rows instead of images.
    Raises SettingError for an unknown kind or option, naming the known ones, and for an impossible size.
    """
    if kind == "columns":
        return Identity(channels)
    if kind not in BACKBONES:
        if not vision.timm.is_model(kind):
            raise SettingError(
                f"backbone: '{kind}' is unknown. Known: {', '.join(sorted(BACKBONES))}, and every architecture of timm."
            )
        return build_backbone("timm", channels=channels, size=size, seed=seed, architecture=kind, **options)
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
            f"backbone: {kind} has no option '{unknown[0]}'. It has {', '.join(known) if known else 'none'}."
        )
    with _initialising, torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, f"backbone {kind}"))
        network, features = builder(channels, size, seed, **options)
    architecture = {"kind": kind, "channels": channels, "size": size, "options": options}
    return Backbone(network, features, architecture)
