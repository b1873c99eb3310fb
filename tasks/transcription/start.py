"""start: the public beginnings of a transcription, a generator and what the student is built on.

Nothing private is read. A scattering student's projection is learned on images of the generator as it was drawn, so
the flow needs no image from anywhere.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tasks.config.params import Params
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import Folders, atomic_folder, read_json, read_tensors, write_json, write_tensors
from terrine.determinism.randomness import derive_seed
from terrine.device import resolve_device
from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.models.files import load_backbone, save_backbone
from terrine.models.invariance import learn_projection
from terrine.models.reference import fit_reference
from terrine.models.registry import build_backbone
from terrine.transcription.generator import Generator, random_vectors
from terrine.transcription.settings import Transcription

STUDENT, GENERATOR = "student.safetensors", "generator.safetensors"
PROJECTION_BATCHES, PROJECTION_BATCH = 8, 400
"""Images of the untrained generator on which an invariant projection is learned."""


def section(params: Params) -> Transcription:
    """Return the parameters of the transcription. Raises SettingError for a run that is none."""
    if params.transcription is None:
        raise SettingError(
            "This run has no section transcription. `terrine presets` lists those that are transcriptions, dpsd-…."
        )
    return params.transcription


@step("start")
def prepare_start(run: Run) -> None:
    """Write the generator and the student's backbone with their initial weights."""
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
    """Return fresh copies of what `prepare_start` wrote."""
    return read_student_start(folders), read_generator(
        folders.start / GENERATOR, read_json(folders.start / "manifest.json")["generator"]
    )


def read_student_start(folders: Folders) -> Backbone:
    """Return the backbone that the student starts from."""
    return load_backbone(folders.start / STUDENT)


def read_generator(path: Path, description: dict[str, int]) -> Generator:
    """Return a stored generator."""
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
