"""The public images that are stored with a student, to lend small requests their statistics."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tasks.pipeline.synthesize import read_queries
from tasks.runtime.run import Run
from tasks.runtime.store import read_tensors, write_tensors
from terrine.classifiers import head_from_arrays, predict
from terrine.deployment.model import BACKBONE, HEAD, REFERENCE
from terrine.deployment.reference import affordable, choose_reference
from terrine.device import resolve_device
from terrine.models.backbone import features_in_batches
from terrine.models.files import load_backbone

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
