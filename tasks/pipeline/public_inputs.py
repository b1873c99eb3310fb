"""What public material goes into a release, and where it came from: for its statement."""

from __future__ import annotations

from tasks.pipeline.guided.queries import FILE as GUIDED_FILE
from tasks.pipeline.synthesize import POOL
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.files import file_digest
from terrine.privacy.statement import PublicInput


def _drawn(run: Run, sources: list[str], seed: int) -> str:
    """Say where the query images come from: from programs, and from real images that were declared public."""
    programs = [source for source in sources if source != POOL]
    parts = [f"drawn by the image programs {', '.join(programs)} with seed {seed}"] if programs else []
    if POOL in sources:
        split = "validation split" if run.params.data.pool == "validation" else "test split, in part"
        parts.append(f"real images of the data's own kind, declared public (the {split} of {run.params.data.name})")
    return "; ".join(parts)


def public_inputs(run: Run) -> tuple[PublicInput, ...]:
    """Return where every public input of a run's release came from."""
    images = read_json(run.folders.images / "manifest.json")
    backbone = read_json(run.folders.backbone / "manifest.json")
    sources = sorted({shard["kind"] for shard in images["shards"]["queries"]})
    rows = "columns" in images
    drawn = "" if rows else _drawn(run, sources, images["seed"])
    inputs = [
        PublicInput(
            name="query rows" if rows else "query images",
            origin=images["origin"] if rows else drawn,
            digest=file_digest(run.folders.images / "manifest.json"),
        ),
        PublicInput(name="backbone", origin=f"{backbone['kind']}: {backbone['origin']}", digest=backbone["sha256"]),
    ]
    if run.params.queries.select == "guided":
        origin = "query images, moved towards what a student of the answers released before was unsure of"
        digest = file_digest(run.folders.answers / GUIDED_FILE)
        inputs.append(PublicInput(name="guided images", origin=origin, digest=digest))
    return tuple(inputs)
