"""pretrain: the backbone that every teacher and the student share, made from synthetic images alone.

Of a table it is the columns themselves, and nothing is trained.
"""

from __future__ import annotations

from typing import Any

from tasks.params import digest
from tasks.progress import progress_reporter
from tasks.run import Run
from tasks.step import step
from tasks.store import Folders, file_digest, link, read_json, write_json
from tasks.synthesize import read_pretraining, read_queries
from terrine.device import resolve_device
from terrine.models.backbone import Backbone, load_backbone, save_backbone
from terrine.models.columns import Columns
from terrine.models.reference import fit_reference
from terrine.models.registry import build_backbone
from terrine.pretraining.invariance import learn_projection

REFERENCE_BATCHES = 8
"""Query batches from which a backbone without weights gets its original statistics; sources take turns in them."""

PROJECTION_BATCHES = 16
"""Query batches on which an invariant projection is learned."""


def backbone_identity(run: Run) -> str:
    """Return the digest of everything the backbone depends on: parameters, seed, and the images' digests."""
    manifest = read_json(run.folders.images / "manifest.json")
    trained = run.params.backbone.kind not in ("scattering", "columns")
    shards = manifest["shards"]["pretraining" if trained else "queries"]
    return digest(
        {
            "seed": run.params.seed,
            "channels": run.params.data.channels,
            "size": run.params.data.size,
            "backbone": run.params.backbone.model_dump(mode="json", exclude={"invariance"} if trained else set()),
            "pretraining": run.params.pretraining.model_dump(mode="json", exclude={"checkpoint_minutes"})
            if trained
            else manifest["batches"][: max(REFERENCE_BATCHES, PROJECTION_BATCHES)],
            "images": [shard["sha256"] for shard in shards],
        }
    )


@step("pretrain")
def pretrain_backbone(run: Run) -> None:
    """Build the backbone, train it if it has weights, and link it into the run.

    A backbone that another run made with equal parameters is used as it is; an interrupted training goes on from its
    last checkpoint.
    """
    identity = backbone_identity(run)
    folder = run.folders.shared("backbone", identity)
    manifest_path = folder / "manifest.json"
    if not manifest_path.is_file():
        backbone = _build(run)
        device = resolve_device(run.params.device)
        folder.mkdir(parents=True, exist_ok=True)
        history = _fit(run, backbone, folder / "checkpoint", device)
        save_backbone(backbone, folder / "backbone.safetensors")
        write_json(
            manifest_path,
            {
                **backbone.describe(),
                "identity": identity,
                "sha256": file_digest(folder / "backbone.safetensors"),
                "images": run.params.pretraining.images and run.params.pretraining.images.model_dump(mode="json"),
                "origin": "nothing is learned" if run.params.backbone.kind == "columns" else "synthetic images only",
                "history": history,
            },
        )
    target = run.folders.backbone
    link(folder / "backbone.safetensors", target / "backbone.safetensors")
    link(manifest_path, target / "manifest.json")


def _build(run: Run) -> Backbone:
    """Return the backbone with its initial weights."""
    settings = run.params.backbone
    if settings.kind == "columns":
        return Columns(read_queries(run.folders).images.shape[1])
    options: dict[str, Any] = (
        {"projection": settings.projection} if settings.kind == "scattering" else {"stem": settings.stem}
    )
    return build_backbone(
        settings.kind,
        channels=run.params.data.channels,
        size=run.params.data.size,
        seed=run.params.seed,
        **options,
    )


def _fit(run: Run, backbone: Backbone, checkpoint: Any, device: Any) -> list[dict[str, float]]:
    settings = run.params.pretraining
    if run.params.backbone.kind == "columns":
        return []
    if run.params.backbone.kind == "scattering":
        queries = read_queries(run.folders)
        if run.params.backbone.invariance:
            batches = queries.batches[:PROJECTION_BATCHES]
            learn_projection(backbone, queries.images, batches, seed=run.params.seed, device=device)
        fit_reference(backbone, queries.images, queries.batches[:REFERENCE_BATCHES], device)
        return []
    from terrine.pretraining.simclr import SimCLRSettings, pretrain

    return pretrain(
        backbone,
        read_pretraining(run.folders),
        SimCLRSettings(
            epochs=settings.epochs,
            batch=settings.batch,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            temperature=settings.temperature,
            projection=settings.projection,
            checkpoint_seconds=60 * settings.checkpoint_minutes,
        ),
        seed=run.params.seed,
        device=device,
        checkpoint=checkpoint,
        progress=progress_reporter("pretraining"),
    )


def read_backbone(folders: Folders) -> Backbone:
    """Load the run's backbone, its digest checked."""
    return load_backbone(folders.backbone / "backbone.safetensors")
