"""Features of the queries, shared by all runs, and resumable extraction of features image by image."""

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
from terrine.models.backbone import BLOCK, Backbone, features_in_batches, features_one_by_one
from terrine.models.statistics import Statistics
from terrine.npy import Rows

_ROWS = 32 * BLOCK


def query_features(run: Run, statistics: Statistics) -> np.ndarray:
    """Return features of the fixed query batches, float32 [queries, features]. They are public and shared by runs."""
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
    report: Callable[[float, str], None] | None = None,
) -> np.ndarray:
    """Apply `then` to per-image features (`features_one_by_one`) and cache the result in parts.

    Args:
        path: Path beside which each part has a file, so that an interrupted call resumes.
        backbone: The backbone.
        images: The images.
        then: Function of features [images, features].
        report: Called with the progress, rounded to tenths because the number of private images is private.
    """
    count = len(images)
    parts = {path.with_name(f"{path.stem}-{first}.npy"): first for first in range(0, count, _ROWS)}
    for part, first in parts.items():
        rows = np.arange(first, min(first + _ROWS, count))
        if not part.is_file():
            write_array(part, np.concatenate(list(features_one_by_one(backbone, images, then, rows))))
        if report is not None:
            report((rows[-1] + 1) * 10 // count / 10, "features")
    return np.concatenate([read_array(part) for part in parts])
