"""Votes on guided queries: cast while a release is made, in the private zone, and kept there.

The teachers vote on the batches the images were made in. Votes are kept until the release is complete: asking for votes
on the same images again costs nothing, and after a crash only what is new is voted on.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np

from tasks.config.values import digest
from tasks.pipeline.partition import in_groups
from tasks.pipeline.pretrain import read_backbone
from tasks.pipeline.teach import read_teachers_manifest, teacher_kind
from tasks.pipeline.vote import block_votes
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json, write_array
from terrine.device import resolve_device
from terrine.errors import ArtefactError
from terrine.files import file_digest
from terrine.models.backbone import features_in_batches
from terrine.queries import Queries
from terrine.students.guided import Guided


def votes_on(run: Run, guided: Guided) -> np.ndarray:
    """Return the votes on guided queries, unsigned integers [guided, teachers].

    Raises ArtefactError where the teachers are missing or were changed.
    """
    paths = [_path(run, guided.images[batch]) for batch in guided.batches]
    missing = [number for number, path in enumerate(paths) if not path.is_file()]
    if missing:
        places = np.concatenate([guided.batches[number] for number in missing])
        ends = np.cumsum([len(guided.batches[number]) for number in missing])
        batches = np.split(np.arange(len(places)), ends[:-1])
        first = read_json(run.folders.votes / "manifest.json")["queries"]
        cast = _cast(run, guided.images[places], batches, first + places)
        for number, votes in zip(missing, np.split(cast, ends[:-1]), strict=True):
            write_array(paths[number], votes)
    if not paths:
        return np.empty((0, read_teachers_manifest(run.folders)["teachers"]), np.uint8)
    return np.concatenate([read_array(path) for path in paths])


def check_voters(run: Run, teachers: int) -> None:
    """Raise ArtefactError unless the teachers are there, as many as voted on the other queries.

    To be called before a release is reserved: once it is, nothing should fail any more.
    """
    manifest = read_teachers_manifest(run.folders)
    missing = [name for name in manifest["files"] if not (run.folders.teachers / name).is_file()]
    if missing or manifest["teachers"] != teachers:
        raise ArtefactError(
            f"Guided queries are put to the {teachers} teachers that voted before, but {run.folders.teachers} holds "
            f"{manifest['teachers']} and lacks {len(missing)} of its files. Run the stages 'teach' and 'vote' again."
        )


def forget_votes(run: Run) -> None:
    """Remove the votes that were kept while a release was made."""
    shutil.rmtree(run.folders.work / "guided-votes", ignore_errors=True)


def _path(run: Run, images: np.ndarray) -> Path:
    """Return where the votes on one batch are kept, by all they depend on."""
    identity = digest(
        {
            "images": hashlib.sha256(np.ascontiguousarray(images)).hexdigest(),
            "teachers": read_teachers_manifest(run.folders)["digest"],
            "backbone": file_digest(run.folders.backbone / "backbone.safetensors"),
            "statistics": run.params.teachers.statistics,
        }
    )
    return run.folders.work / "guided-votes" / f"{identity}.npy"


def _cast(run: Run, images: np.ndarray, batches: list[np.ndarray], numbers: np.ndarray) -> np.ndarray:
    """Return the votes on images in their batches; numbers: of these among all queries."""
    kind, device = teacher_kind(run), resolve_device(run.params.device)
    inputs = images
    if run.params.teachers.inputs == "features":
        backbone = read_backbone(run.folders)
        inputs = features_in_batches(backbone, images, batches, run.params.teachers.statistics, device)
    queries, blocks = Queries(inputs, batches), in_groups(read_teachers_manifest(run.folders)["teachers"], kind.block)
    return np.concatenate([block_votes(run, kind, block, queries, numbers, device) for block in blocks], axis=1)
