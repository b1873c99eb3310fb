"""Initial generator and student of a transcription (stage `start`), and its stored clients.

`start` reads no private data. A scattering student's projection is fitted to images of the untrained generator, so no
other images are needed.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tasks.artefacts.records import in_groups
from tasks.config.params import Params
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import Folders, atomic_folder, read_json, read_tensors, write_json, write_tensors
from terrine.determinism.randomness import derive_seed
from terrine.device import resolve_device
from terrine.errors import ArtefactError, SettingError
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone
from terrine.models.backbone_files import load_backbone, save_backbone
from terrine.models.lda_projection import learn_projection
from terrine.models.statistics import fit_reference
from terrine.teachers.linear import LinearHeads
from terrine.teachers.networks import ScratchKind, ScratchTeachers
from terrine.transcription.clients import Clients, FileTeacher, LinearClients, NetworkClients, load_model
from terrine.transcription.generator import Generator, random_vectors
from terrine.transcription.settings import Transcription

STUDENT, GENERATOR = "student.safetensors", "generator.safetensors"
PROJECTION_BATCHES, PROJECTION_BATCH = 8, 400
"""Number of batches from the untrained generator to which a projection is fitted, and images per batch."""


def section(params: Params) -> Transcription:
    """Return the section `transcription`. Raises SettingError for another kind of run."""
    if params.transcription is None:
        raise SettingError(
            "This run has no section transcription. Start from a preset named dpsd-… (`terrine presets`)."
        )
    return params.transcription


@step("start")
def prepare_start(run: Run) -> None:
    """Write generator and student backbone with their initial weights."""
    data, settings = run.params.data, section(run.params).generator
    own = {"latent": settings.latent, "width": settings.width, "seed": run.params.seed}
    generator = Generator(data.channels, data.size, **own)
    backbone = _backbone(run, generator)
    with atomic_folder(run.folders.start) as folder:
        save_backbone(backbone, folder / STUDENT)
        write_generator(folder / GENERATOR, generator)
        write_json(
            folder / "manifest.json",
            {"generator": generator.describe(), "student": backbone.describe(), "seed": run.params.seed},
        )


def write_generator(path: Path, generator: Generator) -> None:
    """Write a generator's weights."""
    write_tensors(path, {name: value.detach().cpu().numpy() for name, value in generator.state_dict().items()})


def read_start(folders: Folders) -> tuple[Backbone, Generator]:
    """Load the initial backbone and generator."""
    return read_student_start(folders), read_generator(
        folders.start / GENERATOR, read_json(folders.start / "manifest.json")["generator"]
    )


def read_student_start(folders: Folders) -> Backbone:
    """Load the student's initial backbone."""
    return load_backbone(folders.start / STUDENT)


def read_generator(path: Path, description: dict[str, int]) -> Generator:
    """Load a stored generator."""
    generator = Generator(**description, seed=0)
    generator.load_state_dict({name: torch.from_numpy(value) for name, value in read_tensors(path).items()})
    return generator


def _backbone(run: Run, generator: Generator) -> Backbone:
    data, settings, seed = run.params.data, section(run.params).student, run.params.seed
    common = {"channels": data.channels, "size": data.size, "seed": seed}
    if settings.architecture != "scattering":
        return build_backbone(settings.architecture, **common)
    backbone = build_backbone("scattering", **common, projection=settings.projection)
    device = resolve_device(run.params.device)
    images, batches = _untrained_images(generator, seed)
    if settings.learns_projection:
        learn_projection(backbone, images, batches, seed=seed, device=device)
    fit_reference(backbone, images, batches, device)
    return backbone.cpu()


@torch.no_grad()
def _untrained_images(generator: Generator, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    own = derive_seed(seed, "projection images")
    drawn = [
        generator(random_vectors(PROJECTION_BATCH, generator.latent, own, number))
        for number in range(PROJECTION_BATCHES)
    ]
    images = (torch.cat(drawn) * 255).round().to(torch.uint8).numpy()
    return images, list(np.arange(len(images)).reshape(PROJECTION_BATCHES, PROJECTION_BATCH))


HEADS, MODEL = "heads.safetensors", "model.safetensors"


def number_of_clients(run: Run) -> int:
    """Return m, the number of clients."""
    return run.params.partition.teachers if section(run.params).federated else 1


def groups(run: Run) -> list[range]:
    """Return the groups of clients, one per task; a single group if `per_task` is not set."""
    clients = number_of_clients(run)
    return in_groups(clients, section(run.params).per_task or clients)


def network_kind(run: Run, classes: int) -> ScratchKind:
    """Return the teacher kind for clients that are networks trained in this run."""
    settings, data = section(run.params).teacher, run.params.data
    names = ("architecture", "epochs", "learning_rate", "weight_decay", "batch", "statistics")
    own = ScratchTeachers(**{name: getattr(settings, name) for name in names})
    return ScratchKind(own, data.channels, data.size, classes)


def read_manifest(run: Run) -> dict[str, Any]:
    """Load the manifest of the stored clients. Private."""
    return read_json(run.folders.teachers / "manifest.json")


def read_model(run: Run, path: Path, classes: int) -> tuple[nn.Module, int]:
    """Load a model and its number of channels from a file; see `load_model`."""
    data = run.params.data
    return load_model(path, section(run.params).teacher, channels=data.channels, size=data.size, classes=classes)


def read_clients(run: Run, group: range) -> Clients:
    """Load a group of clients; the last groups are cached in memory."""
    return _clients(run.root, run.name, run.params.model_dump_json(), read_manifest(run)["digest"], group)


@lru_cache(maxsize=8)
def _clients(root: Path, name: str, parameters: str, stored: str, group: range) -> Clients:
    """Load a group of clients; `stored`, the digest of all clients on disk, is part of the cache key."""
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
