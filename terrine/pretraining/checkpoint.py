"""Checkpoints of a training run: one safetensors file with tensors and a JSON description, replaced atomically.

A crash at any moment leaves the previous checkpoint or the new one, never part of one. Nothing is pickled, so a file
from elsewhere cannot run code. (safetensors is imported only to read and write files: training needs only torch.)
"""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, optim

from terrine.errors import ArtefactError
from terrine.files import atomic_file

_METADATA_KEY = "checkpoint"


def write_checkpoint(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Atomically write `tensors` and the JSON-able `description` to `path`."""
    import safetensors.torch

    data = safetensors.torch.save(
        {name: value.detach().cpu().contiguous() for name, value in tensors.items()},
        metadata={_METADATA_KEY: json.dumps(description, sort_keys=True)},
    )
    with atomic_file(path) as file:
        file.write(data)


def read_checkpoint(path: Path, run: dict[str, Any] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors (on the CPU) and the description that `write_checkpoint` wrote.

    Args:
        path: Path of the safetensors file.
        run: Expected `run` of the description: everything on which the result depends.

    Raises:
        ArtefactError: The file is damaged, not a checkpoint, or from another training run.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            description = json.loads((file.metadata() or {})[_METADATA_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no dict
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ArtefactError(
            f"The checkpoint {path} cannot be read ({error}). Delete it to start the run from its beginning."
        ) from error
    if run is not None and description["run"] != run:
        other = sorted(key for key in run if description["run"].get(key) != run[key])
        raise ArtefactError(
            f"The checkpoint {path} belongs to another training: {', '.join(other)} differ. Delete it to start over, "
            "or give this training another place."
        )
    return tensors, description


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, keyed by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def optimizer_tensors(optimizer: optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state as named tensors, with parameters numbered in the optimiser's order."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": value for index, fields in state.items() for name, value in fields.items()}


def restore_optimizer(optimizer: optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the state that `optimizer_tensors` returned into the optimiser; its settings do not change."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
