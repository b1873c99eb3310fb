"""Reading of query images, pretraining images and the backbone of a run."""

from __future__ import annotations

import numpy as np

from tasks.runtime.store import Folders, read_json
from terrine.determinism.randomness import numpy_generator
from terrine.errors import ArtefactError
from terrine.models.backbone import Backbone
from terrine.models.backbone_files import load_backbone
from terrine.npy import MappedRows, Segment
from terrine.queries import Queries

POOL = "pool"
"""Source of queries that are real images declared public."""
PUBLIC_ROWS, DRAWN_ROWS = "public rows", "drawn rows"
"""Sources of queries for tables: rows declared public, or rows drawn from the declared columns."""


def pool_order(seed: int, images: int) -> np.ndarray:
    """Return the order of queries from a public pool, int64 [images]. It is random because files are often sorted."""
    return numpy_generator(seed, "pool order").permutation(images)


def read_queries(folders: Folders) -> Queries:
    """Map the queries: uint8 images [queries, C, size, size] or a table's float32 rows [queries, F]."""
    manifest = read_json(folders.images / "manifest.json")
    by_kind: dict[str, list[Segment]] = {}
    for shard in manifest["shards"]["queries"]:
        by_kind.setdefault(shard["kind"], []).append(Segment(folders.images / shard["file"], 0, shard["count"]))
    segments, batches, kinds = [], [], []
    for batch in manifest["batches"]:
        start, first, count = batch["source_start"], batch["first"], batch["count"]
        segments.extend(_stretch_of(by_kind[batch["kind"]], start, count))
        batches.append(np.arange(first, first + count))
        kinds.append(batch["kind"])
    return Queries(MappedRows(segments), batches, kinds)


def _stretch_of(shards: list[Segment], start: int, count: int) -> list[Segment]:
    """Return the segments of rows `start` .. `start + count - 1` of consecutive shards."""
    found, position = [], 0
    for shard in shards:
        first, end = max(start, position), min(start + count, position + shard.count)
        if first < end:
            found.append(Segment(shard.path, first - position, end - first))
        position += shard.count
    return found


def read_pretraining(folders: Folders) -> MappedRows:
    """Map the pretraining images, uint8 [images, channels, size, size]. Raises ArtefactError if there are none."""
    manifest = read_json(folders.images / "manifest.json")
    shards = manifest["shards"]["pretraining"]
    if not shards:
        raise ArtefactError(f"{folders.images} holds no pretraining images. Set pretraining.images in params.yaml.")
    return MappedRows([Segment(folders.images / shard["file"], 0, shard["count"]) for shard in shards])


def read_backbone(folders: Folders) -> Backbone:
    """Load the run's backbone and check its digest."""
    return load_backbone(folders.backbone / "backbone.safetensors")
