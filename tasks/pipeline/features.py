"""Features of the queries under one kind of statistics: computed once, used by teachers and students of all runs."""

from __future__ import annotations

import numpy as np

from tasks.config.values import digest
from tasks.pipeline.pretrain import read_backbone
from tasks.pipeline.synthesize import read_queries
from tasks.runtime.run import Run
from tasks.runtime.store import file_digest, read_array, write_array
from terrine.device import resolve_device
from terrine.models.backbone import features_in_batches


def query_features(run: Run, statistics: str) -> np.ndarray:
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
