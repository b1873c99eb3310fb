"""The clients of a transcription as stored, and as they answer."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from tasks.config.params import Params
from tasks.pipeline.partition import in_groups
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, read_tensors
from tasks.transcription.start import read_student_start, section
from terrine.device import resolve_device
from terrine.errors import ArtefactError
from terrine.teachers.kinds.scratch import ScratchTeachers
from terrine.teachers.linear import LinearHeads
from terrine.teachers.scratch import ScratchKind
from terrine.transcription.clients import Clients, LinearClients, NetworkClients
from terrine.transcription.teacher_file import FileTeacher, load_model

HEADS, MODEL = "heads.safetensors", "model.safetensors"


def number_of_clients(run: Run) -> int:
    """Return m."""
    return run.params.partition.teachers if section(run.params).federated else 1


def groups(run: Run) -> list[range]:
    """Return the clients that answer in one task each; all of them in one where nothing else is asked for."""
    clients = number_of_clients(run)
    return in_groups(clients, section(run.params).per_task or clients)


def network_kind(run: Run, classes: int) -> ScratchKind:
    """Return the kind of teacher that the parameters ask for, where it is a network that is trained here."""
    settings, data = section(run.params).teacher, run.params.data
    names = ("architecture", "epochs", "learning_rate", "weight_decay", "batch", "statistics")
    own = ScratchTeachers(**{name: getattr(settings, name) for name in names})
    return ScratchKind(own, data.channels, data.size, classes)


def read_manifest(run: Run) -> dict[str, Any]:
    """Return the manifest of the stored clients. Private."""
    return read_json(run.folders.teachers / "manifest.json")


def read_model(run: Run, path: Path, classes: int) -> tuple[nn.Module, int]:
    """Return the model in a file, and its channels: see `load_model`."""
    data = run.params.data
    return load_model(path, section(run.params).teacher, channels=data.channels, size=data.size, classes=classes)


def read_clients(run: Run, group: range) -> Clients:
    """Return a group of clients, ready to answer; the last groups read are kept in memory."""
    return _clients(run.root, run.name, run.params.model_dump_json(), read_manifest(run)["digest"], group)


@lru_cache(maxsize=8)
def _clients(root: Path, name: str, parameters: str, stored: str, group: range) -> Clients:
    """Return a group of clients of a run. stored: the digest of all clients on disk."""
    run = Run(root, name, Params.model_validate_json(parameters))
    settings, manifest = section(run.params).teacher, read_manifest(run)
    folder, classes, device = run.folders.teachers, manifest["classes"], resolve_device(run.params.device)
    if manifest["source"] == "file":
        return FileTeacher(*read_model(run, folder / MODEL, classes), settings, device)
    if settings.architecture == "linear":
        arrays = read_tensors(folder / HEADS)
        heads = LinearHeads(arrays["weight"][group.start : group.stop], arrays["bias"][group.start : group.stop])
        return LinearClients(read_student_start(run.folders), heads, settings, device)
    kind = network_kind(run, classes)
    states = [_state(folder, manifest["files"], client) for client in group]
    return NetworkClients(kind.classifier(run.params.seed), states, settings, device)


def _state(folder: Path, files: list[dict[str, Any]], client: int) -> dict[str, np.ndarray]:
    for entry in files:
        if entry["first"] <= client < entry["stop"]:
            arrays = read_tensors(folder / entry["file"])
            prefix = f"{client}."
            return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
    raise ArtefactError(f"The stored teachers lack client {client}. Run the stage 'teach' again.")
