"""Backbones on disk: weights and description in one safetensors file, which cannot hold code."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open

from terrine.errors import ArtefactError
from terrine.files import atomic_file
from terrine.geometry import as_size
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone

_METADATA_KEY = "backbone"


def save_backbone(backbone: Backbone, path: Path) -> None:
    """Write weights and description to one safetensors file atomically; equal states give equal bytes.

    The format cannot hold code, so a file from elsewhere is safe to load.
    """
    state = {name: value.detach().cpu().contiguous() for name, value in backbone.network.state_dict().items()}
    data = safetensors.torch.save(state, metadata={_METADATA_KEY: json.dumps(backbone.describe(), sort_keys=True)})
    with atomic_file(path) as file:
        file.write(data)


def read_description(path: Path) -> dict[str, Any]:
    """Return the description of a stored backbone (`Backbone.describe`) without its weights.

    Raises ArtefactError for a file that is missing, damaged or not a backbone.
    """
    try:
        with safe_open(path, framework="np") as file:
            described: dict[str, Any] = json.loads((file.metadata() or {})[_METADATA_KEY])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ArtefactError(f"{path} is missing or holds no backbone ({error}).") from error
    return described


def load_backbone(path: Path) -> Backbone:
    """Return the backbone that `save_backbone` wrote, on the CPU and in evaluation mode.

    Raises ArtefactError when the file is missing, damaged, or not a backbone.
    """
    if not path.is_file():
        raise ArtefactError(f"The backbone {path} does not exist. Run the stage 'pretrain' to make it.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # safe_open is not a dict
        architecture = json.loads(metadata[_METADATA_KEY])
        options = architecture["options"]
        backbone = build_backbone(
            architecture["kind"],
            channels=architecture["channels"],
            size=as_size(architecture["size"]),
            seed=0,
            **options,
        )
        backbone.network.load_state_dict(state)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ArtefactError(
            f"{path} is damaged or holds no backbone ({error}). Delete it and run the stage 'pretrain' again."
        ) from error
    return backbone
