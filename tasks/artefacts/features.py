"""Features of the queries under one kind of statistics: computed once, used by teachers and students of all runs.

And features of many images one by one, which may take hours: what was cut short goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tasks.artefacts.images import read_backbone, read_queries
from tasks.config.values import digest
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, write_array
from terrine.device import resolve_device
from terrine.files import file_digest
from terrine.models.backbone import BLOCK, Backbone, Progress, features_in_batches, features_one_by_one
from terrine.models.statistics import Statistics
from terrine.npy import Rows

_ROWS = 32 * BLOCK


def query_features(run: Run, statistics: Statistics) -> np.ndarray:
    """Return float32 [queries, features] of the fixed query batches; public, hence shared between runs."""
    identity = digest(
        {
            "statistics": statistics,
            "backbone": file_digest(run.folders.backbone / "backbone.safetensors"),
            "images": file_digest(run.folders.images / "manifest.json"),
        }
    )
    path = run.folders.shared("features", identity).with_suffix(".npy")
    if not path.is_file():
        queries = read_queries(run.folders)
        device = resolve_device(run.params.device)
        backbone = read_backbone(run.folders).to(device)
        write_array(path, features_in_batches(backbone, queries.images, queries.batches, statistics, device))
    return read_array(path)


def rows_in_parts(
    path: Path,
    backbone: Backbone,
    images: Rows,
    then: Callable[[np.ndarray], np.ndarray],
    report: Progress | None = None,
) -> np.ndarray:
    """Return `then` of the features of images, of each by itself (`features_one_by_one`), and keep them in parts.

    path: beside it each part is a file, which the next call finds.
    """
    count = len(images)
    parts = {path.with_name(f"{path.stem}-{first}.npy"): first for first in range(0, count, _ROWS)}
    for part, first in parts.items():
        rows = np.arange(first, min(first + _ROWS, count))
        if not part.is_file():
            write_array(part, np.concatenate(list(features_one_by_one(backbone, images, then, rows))))
        if report is not None:
            # In tenths, whoever looks on: how many private images there are is private.
            report((rows[-1] + 1) * 10 // count / 10, "features")
    return np.concatenate([read_array(part) for part in parts])
