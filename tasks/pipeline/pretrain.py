"""pretrain: make the backbone shared by teachers and student, from public images only.

Networks are trained by SimCLR on synthetic images or get external weights. Backbones without weights, such as the
scattering transform, are fitted to the queries or the pretraining images. The backbone of a table is the columns
themselves. The manifest names the backbone's origin for the privacy statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch

from tasks.artefacts.images import POOL, read_pretraining, read_queries
from tasks.config.values import digest
from tasks.runtime.locks import locked
from tasks.runtime.progress import progress_reporter
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import link, read_json, write_json
from terrine.device import resolve_device
from terrine.errors import InputError
from terrine.files import file_digest
from terrine.geometry import in_json
from terrine.models.architecture import PROJECTION_BATCHES, REFERENCE_BATCHES
from terrine.models.backbone import Backbone
from terrine.models.backbone_files import save_backbone
from terrine.models.weights import FROM_TIMM, INITIAL, take_weights
from terrine.npy import Rows

SYNTHETIC = "synthetic images only"


def backbone_identity(run: Run) -> str:
    """Return the digest of all inputs of the backbone: parameters, seed and images."""
    manifest = read_json(run.folders.images / "manifest.json")
    settings = run.params.backbone
    on_pretraining = settings.pretrained_here or settings.reference == "pretraining"
    shards = manifest["shards"]["pretraining" if on_pretraining else "queries"]
    queries = manifest["batches"][: max(REFERENCE_BATCHES, PROJECTION_BATCHES)]
    if _weights(run) is not None:
        shards, batches = [], []
    elif settings.reference == "pretraining":
        batches = [run.params.queries.batch]
    else:
        batches = queries
    parts = {
        "seed": run.params.seed,
        "channels": run.params.data.channels,
        "size": in_json(run.params.data.size),
        "backbone": settings.identity(),
        "pretraining": run.params.pretraining.model_dump(mode="json", exclude={"checkpoint_minutes"})
        if settings.pretrained_here
        else batches,
        "images": [shard["sha256"] for shard in shards],
    }
    if _weights(run) is not None:
        parts["weights"] = _weights_digest(run)
    elif (origin := _images_seen(run)) != SYNTHETIC:
        parts["origin"] = origin
    if settings.has_weights and settings.reference is not None:
        # Its standardisation, and its projection if it learns one, are fitted to the queries.
        parts["reference"] = [queries, [shard["sha256"] for shard in manifest["shards"]["queries"]]]
    return digest(parts)


@step("pretrain")
def pretrain_backbone(run: Run) -> None:
    """Build the backbone, train it if it has weights, and link it into the run.

    A backbone made by another run with equal inputs is reused. An interrupted training resumes from its checkpoint.
    """
    identity = backbone_identity(run)
    folder = run.folders.shared("backbone", identity)
    manifest_path = folder / "manifest.json"
    with locked(folder / ".lock", what="is training the same backbone"):
        if not manifest_path.is_file():
            _make(run, identity, folder)
    target = run.folders.backbone
    link(folder / "backbone.safetensors", target / "backbone.safetensors")
    link(manifest_path, target / "manifest.json")


def _make(run: Run, identity: str, folder: Path) -> None:
    """Write the backbone and then its manifest to the folder that runs share."""
    backbone = _build(run)
    device = resolve_device(run.params.device)
    folder.mkdir(parents=True, exist_ok=True)
    history = _fit(run, backbone, folder / "checkpoint", device)
    save_backbone(backbone, folder / "backbone.safetensors")
    write_json(
        folder / "manifest.json",
        {
            **backbone.describe(),
            "identity": identity,
            "sha256": file_digest(folder / "backbone.safetensors"),
            "images": run.params.pretraining.images and run.params.pretraining.images.model_dump(mode="json"),
            "origin": _origin(run),
            "history": history,
        },
    )


def _weights(run: Run) -> Path | None:
    """Return the source of external weights, or None."""
    return getattr(run.params.backbone, "weights", None)


def _weights_digest(run: Run) -> str:
    """Return the digest of a file of external weights, or the name of their source."""
    weights = _weights(run)
    if weights is None or str(weights) in (FROM_TIMM, INITIAL):
        return str(weights)
    path = run.path(weights)
    if not path.is_file():
        raise InputError(f"{path} does not exist. Correct backbone.weights, or set it to null.")
    return file_digest(path)


def _origin(run: Run) -> str:
    """Return the origin of the backbone for the privacy statement."""
    settings, weights = run.params.backbone, _weights(run)
    if not settings.of_images:
        return "nothing is learned"
    if weights is None:
        return _images_seen(run)
    if str(weights) == INITIAL:
        return "nothing: its weights are random"
    if str(weights) == FROM_TIMM:
        return f"non-private pretraining: the weights that timm publishes for {getattr(settings, 'architecture', None)}"
    seen = _images_seen(run)
    fitted = "" if seen == SYNTHETIC else f", fitted to {seen}"
    return f"non-private pretraining: weights from {weights.name}, SHA-256 {_weights_digest(run)}{fitted}"


def _images_seen(run: Run) -> str:
    settings, queries = run.params.backbone, run.params.queries
    if settings.reference != "queries" or POOL not in queries.sources:
        return SYNTHETIC
    pool = "the public pool of real images that the teachers are asked about"
    return f"synthetic images and {pool}" if settings.pretrained_here or len(queries.sources) > 1 else f"only {pool}"


def _build(run: Run) -> Backbone:
    """Return the backbone with its initial weights."""
    data, settings = run.params.data, run.params.backbone
    channels = data.channels if settings.of_images else read_queries(run.folders).images.shape[1]
    return settings.build(channels, data.size, run.params.seed)


def _fit(run: Run, backbone: Backbone, checkpoint: Path, device: torch.device) -> list[dict[str, float]]:
    """Train a backbone that has weights or fit one that has none, and return the training history."""
    settings, weights = run.params.backbone, _weights(run)
    if weights is not None:
        take_weights(backbone, weights if str(weights) in (FROM_TIMM, INITIAL) else run.path(weights))
    history = []
    if settings.pretrained_here:
        from terrine.pretraining.simclr import pretrain

        history = pretrain(
            backbone,
            read_pretraining(run.folders),
            run.params.pretraining,
            seed=run.params.seed,
            device=device,
            checkpoint=checkpoint,
            progress=progress_reporter(run.name, "pretraining"),
        )
    if settings.reference is not None:
        images, batches = _fitted_to(run)
        settings.adapt(backbone, images, batches, seed=run.params.seed, device=device)
    return history


def _fitted_to(run: Run) -> tuple[Rows, Sequence[np.ndarray]]:
    """Return the images that a backbone is fitted to, and batches of one source each, with alternating sources."""
    if run.params.backbone.reference == "queries":
        queries = read_queries(run.folders)
        return queries.images, queries.batches
    by_source: dict[str, list[np.ndarray]] = {}
    first = 0
    for shard in read_json(run.folders.images / "manifest.json")["shards"]["pretraining"]:
        parts = max(1, round(shard["count"] / run.params.queries.batch))
        own = np.array_split(np.arange(first, first + shard["count"]), parts)
        by_source.setdefault(shard["kind"], []).extend(own)
        first += shard["count"]
    turns = zip_longest(*by_source.values())
    return read_pretraining(run.folders), [batch for turn in turns for batch in turn if batch is not None]
