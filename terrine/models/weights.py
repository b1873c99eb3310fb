"""Weights that were trained elsewhere: from a local file, or from timm's own download.

A file is safetensors, or a state dict that torch reads with `weights_only`: files that could run code are refused. The
weights must belong to the same architecture: every weight of the network must be in the file, with its shape. A
classifier in the file is ignored, because a backbone does not use it.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from terrine import vision
from terrine.errors import InputError, SettingError
from terrine.geometry import in_json
from terrine.models.backbone import Backbone
from terrine.models.networks import TimmNetwork

FROM_TIMM = "timm"
"""Value of the setting for the weights that timm publishes for its architecture."""
INITIAL = "initial"
"""Value of the setting for the network's random initial weights."""

_CLASSIFIERS = ("fc.", "head.", "classifier.", "head_dist.", "last_linear.")


def take_weights(backbone: Backbone, weights: Path) -> None:
    """Give a backbone the weights that `Trained.weights` names: timm's, those in a file, or the ones it has."""
    if str(weights) == FROM_TIMM:
        download_weights(backbone)
    elif str(weights) != INITIAL:
        load_weights(backbone, weights)


def load_weights(backbone: Backbone, path: Path) -> None:
    """Replace the weights of a backbone by those in the file at `path`.

    Raises InputError for a file that is missing, damaged, contains Python objects, or belongs to another architecture.
    """
    target, state = backbone.trainable()[0], read_state(path)
    if isinstance(target, TimmNetwork):
        target = target.model
    kind = _name(backbone)
    own = target.state_dict()
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    foreign = [name for name in state if name not in own and not name.startswith(_CLASSIFIERS)]
    if missing or foreign:
        which = f"has no '{missing[0]}'" if missing else f"has '{foreign[0]}', which {kind} has not"
        raise InputError(
            f"{path} holds the weights of another architecture than {kind}: it {which} ({len(missing)} missing, "
            f"{len(foreign)} foreign). Set backbone.kind and backbone.architecture to the one it was made for."
        )
    misshapen = [name for name in own if name in state and own[name].shape != state[name].shape]
    if misshapen:
        name = misshapen[0]
        raise InputError(
            f"{path}: '{name}' is {list(state[name].shape)} where {kind} for images of {backbone.channels} channels "
            f"and side {in_json(backbone.size)} has {list(own[name].shape)}. Set data.channels, backbone.stem and "
            "backbone.enlarge as the weights were made."
        )
    target.load_state_dict({name: state[name] for name in own if name in state}, strict=False)


def download_weights(backbone: Backbone) -> None:
    """Replace the weights of a timm architecture by those that timm publishes, from its cache or the network.

    Raises SettingError for another kind of backbone, InputError if the weights cannot be loaded.
    """
    if not isinstance(backbone.network, TimmNetwork):
        raise SettingError(f"backbone.weights=timm goes with backbone.kind=timm, not with {_name(backbone)}.")
    description, classes = backbone.describe()["options"], backbone.network.model.num_classes
    try:
        published = vision.timm.create_model(
            description["architecture"], pretrained=True, num_classes=classes, in_chans=backbone.channels
        )
    except Exception as error:  # no network, no weights for this name, a proxy: all have the same remedy
        raise InputError(
            f"timm's weights of {description['architecture']} could not be had ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}). Download them elsewhere and set backbone.weights to "
            "the file."
        ) from error
    target = backbone.network.model
    try:
        target.load_state_dict(published.state_dict())
    except RuntimeError as error:
        raise InputError(
            f"timm's weights of {description['architecture']} are for images of another size. Set backbone.enlarge to "
            "the side they were made for."
        ) from error


def _name(backbone: Backbone) -> str:
    description = backbone.describe()
    return str(description["options"].get("architecture", description["kind"]))


def read_state(path: Path, setting: str = "backbone.weights") -> Mapping[str, Tensor]:
    """Return the state dict in a file, which the parameter `setting` names.

    Raises InputError if the file is missing, damaged or contains anything else.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path}. Point {setting} at the weights, or set it to null.")
    if path.suffix == ".safetensors":
        import safetensors.torch
        from safetensors import SafetensorError

        try:
            return safetensors.torch.load_file(path)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is truncated or no safetensors file ({error}). Copy it again.") from error
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} contains Python objects in addition to weights. They were not run. Save the model's state dict as "
            "safetensors (safetensors.torch.save_file(model.state_dict(), ...))."
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged or no file of weights ({type(error).__name__}). Copy it again.") from error
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise InputError(f"{path} holds no state dict (names and tensors). Save model.state_dict().")
    return {str(name).removeprefix("module."): value for name, value in loaded.items()}


def last_parameters(network: nn.Module, percent: float) -> list[tuple[str, nn.Parameter]]:
    """Return the last parameters, whole tensors with their names, that hold at least `percent` % of all weights.

    Partial fine-tuning trains them (an ablation of DIET-PATE, Anonymous 2025). "Last" is the order in which a network
    registers its layers, from input to output in feed-forward networks. Tensors are not cut, so the share may be larger
    than requested: the last convolution of a ResNet18 is 21 %. The parameters are in network order.

    Raises:
        SettingError: a network without weights.
    """
    parameters = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    if not parameters:
        raise SettingError(
            "trainable: this network has no weights to train. Train only a head (kind=linear), or choose a backbone "
            "with weights (resnet18)."
        )
    total = sum(parameter.numel() for _, parameter in parameters)
    chosen: list[tuple[str, nn.Parameter]] = []
    held = 0
    for name, parameter in reversed(parameters):
        if held * 100 >= percent * total:
            break
        chosen.append((name, parameter))
        held += parameter.numel()
    return chosen[::-1]
