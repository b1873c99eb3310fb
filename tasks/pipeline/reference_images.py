"""What is stored with a student for those who ask about few images: reference images, and the student for one alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tasks.pipeline.synthesize import read_queries
from tasks.runtime.progress import progress_reporter
from tasks.runtime.run import Run
from tasks.runtime.store import read_tensors, write_tensors
from terrine.classifiers import head_from_arrays, predict
from terrine.deployment.alone import student_alone
from terrine.deployment.model import ALONE_BACKBONE, ALONE_HEAD, BACKBONE, HEAD, REFERENCE
from terrine.deployment.reference import affordable, choose_reference
from terrine.device import resolve_device
from terrine.models.backbone import features_in_batches
from terrine.models.files import load_backbone, save_backbone

CANDIDATES = 2_000
"""Query images, those of the first batches, from which reference images are chosen."""


def write_reference(run: Run, folder: Path) -> None:
    """Choose reference images for the student whose backbone and head lie in `folder`, and write them beside these.

    They come from the run's synthetic queries; nothing private is read.
    """
    queries = read_queries(run.folders)
    batches = [queries.batches[0]]
    for batch in queries.batches[1:]:
        if sum(map(len, batches)) + len(batch) > CANDIDATES:
            break
        batches.append(batch)
    # Query numbers follow the batches, so the first batches hold the first images.
    images = queries.images[: sum(map(len, batches))]
    statistics = "current" if min(map(len, batches)) > 1 else "original"
    device = resolve_device(run.params.device)
    features = features_in_batches(load_backbone(folder / BACKBONE), images, batches, statistics, device)
    probabilities = predict(head_from_arrays(read_tensors(folder / HEAD)), features)
    count = affordable(run.params.data.size, run.params.data.channels)
    write_tensors(folder / REFERENCE, {"images": np.asarray(images[choose_reference(probabilities, count)])})


def write_alone(run: Run, folder: Path) -> None:
    """Write the student for one image at a time beside the student in `folder`, if its answers depend on company.

    It comes from the student and the run's public images; nothing private is read. One trained with `original`
    statistics answers so already.
    """
    of_grey_images = run.params.data.of_images and run.params.data.channels == 1
    if run.params.student.statistics == "original" or not of_grey_images:
        return  # of colour images it was worse than fixed statistics (docs/serving.md)
    queries = read_queries(run.folders)
    sources = sorted(set(queries.sources))
    images = [
        queries.images[
            np.concatenate([b for b, name in zip(queries.batches, queries.sources, strict=True) if name == own])
        ]
        for own in sources
    ]
    made = student_alone(
        load_backbone(folder / BACKBONE),
        head_from_arrays(read_tensors(folder / HEAD)),
        images,
        seed=run.params.seed,
        device=resolve_device(run.params.device),
        progress=progress_reporter("student"),
    )
    if made is not None:
        backbone, head = made
        save_backbone(backbone, folder / ALONE_BACKBONE)
        write_tensors(folder / ALONE_HEAD, head.to_arrays())
