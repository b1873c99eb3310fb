"""Synthetic images stored with a student to provide batch statistics for small requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tasks.artefacts.images import POOL, read_queries
from tasks.runtime.run import Run
from tasks.runtime.store import read_tensors, write_tensors
from terrine.deployment.model import BACKBONE, HEAD, REFERENCE
from terrine.deployment.reference import affordable, choose_reference
from terrine.determinism.randomness import derive_seed
from terrine.device import resolve_device
from terrine.heads import head_from_arrays, predict
from terrine.models.backbone import features_in_batches
from terrine.models.backbone_files import load_backbone
from terrine.models.statistics import Statistics
from terrine.synthetic.program import draw

CANDIDATES = 2_000
"""Number of query images in the first batches from which reference images are chosen."""
PROGRAM = "dead_leaves"
"""Program that draws reference images if all queries are real images."""


def write_reference(run: Run, folder: Path) -> str:
    """Choose reference images for the student in `folder`, write them there, and describe them in English.

    Reference images are synthetic queries or images drawn here; never real images, even if these were declared public.
    """
    queries = read_queries(run.folders)
    sources = zip(queries.batches, queries.sources, strict=True)
    drawn = [batch for batch, source in sources if source != POOL]
    ends = np.cumsum([len(batch) for batch in drawn])
    rows = drawn[: max(1, int((ends <= CANDIDATES).sum()))]
    data, device = run.params.data, resolve_device(run.params.device)
    count = affordable(data.size, data.channels)
    if rows:
        images, drawn_by = np.asarray(queries.images[np.concatenate(rows)]), sorted(set(queries.sources) - {POOL})
    else:
        seed = derive_seed(run.params.seed, "reference images")
        images = draw(PROGRAM, seed=seed, first=0, count=2 * count, size=data.size, channels=data.channels).numpy()
        rows, drawn_by = [np.arange(len(images))], [PROGRAM]
    batches = np.split(np.arange(len(images)), np.cumsum([len(batch) for batch in rows])[:-1])
    statistics: Statistics = "current" if min(map(len, batches)) > 1 else "original"
    features = features_in_batches(load_backbone(folder / BACKBONE), images, batches, statistics, device)
    probabilities = predict(head_from_arrays(read_tensors(folder / HEAD)), features)
    chosen = images[choose_reference(probabilities, count)]
    write_tensors(folder / REFERENCE, {"images": chosen})
    return f"{len(chosen)} images drawn by the image programs {', '.join(drawn_by)}"
