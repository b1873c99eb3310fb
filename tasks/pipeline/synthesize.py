"""synthesize: draw the queries and the pretraining images.

Image programs draw shards (`terrine.synthetic.shards`) into a folder that runs share, named by the digest of its
inputs, and the run links them. A shard is drawn again only if its bytes have changed.

Rows of a table are drawn from its declared columns. Public rows and the source `pool` were declared public.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from tasks.artefacts.images import DRAWN_ROWS, POOL, PUBLIC_ROWS, pool_order
from tasks.artefacts.records import load_dataset
from tasks.config.sections import Images
from tasks.config.values import digest
from tasks.runtime.accounts import people_in, publish
from tasks.runtime.locks import locked
from tasks.runtime.progress import progress_reporter
from tasks.runtime.run import SPLIT_SEED, Run
from tasks.runtime.step import step
from tasks.runtime.store import atomic_folder, link, write_array, write_json
from terrine.determinism.randomness import derive_seed, numpy_generator
from terrine.device import resolve_device
from terrine.errors import ArtefactError, SettingError
from terrine.files import file_digest
from terrine.geometry import in_json, pixels
from terrine.queries import in_turns
from terrine.synthetic.program import VERSION, program
from terrine.synthetic.shards import SHARD_BYTES, Stretch, read_shard_record, write_stretch

SHARD = 10_000
"""Largest number of images in a shard, the unit of fan-out and resumption; shards of large images are smaller."""
SECONDS_OF_SILENCE = 2.0
"""Interval between two progress reports of a shard, in seconds."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Draw:
    """Consecutive images of one source."""

    purpose: str
    kind: str
    first: int
    count: int


def plan(run: Run) -> list[Draw]:
    """Return the shards of a run's images, or none for a table. Raises SettingError for unknown image programs."""
    if not run.params.data.of_images:
        return []
    size, channels = run.params.data.size, run.params.data.channels
    shard = max(1, min(SHARD, SHARD_BYTES // (channels * pixels(size))))
    wanted: dict[str, Images | None] = {"queries": run.params.queries, "pretraining": run.params.pretraining.images}
    draws: list[Draw] = []
    for purpose, images in wanted.items():
        if images is None:
            continue
        for kind, count in images.shares().items():
            if kind == POOL and purpose == "queries":
                continue
            program(kind)
            starts = range(0, count, shard)
            draws.extend(Draw(purpose, kind, first, min(shard, count - first)) for first in starts)
    return draws


def shard_path(run: Run, draw: Draw) -> Path:
    """Return the path of a shard, which contains the digest of its inputs."""
    geometry = {"seed": run.params.seed, "size": in_json(run.params.data.size), "channels": run.params.data.channels}
    identity = digest(
        {
            **geometry,
            "version": VERSION,
            "purpose": draw.purpose,
            "kind": draw.kind,
            "first": draw.first,
            "n": draw.count,
        }
    )
    return run.folders.shared("images", draw.kind.replace(":", "-")) / f"{draw.purpose}-{draw.first:09d}-{identity}.npy"


def stretch(run: Run, draw: Draw) -> Stretch:
    """Return the description of a shard's images. Pretraining images and queries have different seeds."""
    data = run.params.data
    return Stretch(
        draw.kind, derive_seed(run.params.seed, draw.purpose), data.size, data.channels, draw.first, draw.count
    )


@step("draw images")
def draw_shard(run: Run, draw: Draw) -> None:
    """Draw one shard, unless it is on disk and unchanged. Raises ArtefactError if the disk is full."""
    path = shard_path(run, draw)
    with locked(path.with_name(f".{path.name}.lock"), what="is drawing the same images"):
        written = write_stretch(
            path, stretch(run, draw), device=resolve_device(run.params.device), progress=_progress(run.name, draw)
        )
    if written.state == "redrawn":
        _logger.warning("%s did not match its digest and was drawn again.", written.path)


def _progress(run: str, draw: Draw) -> Callable[[int], None]:
    """Return a function that counts images and reports the progress of a shard if it takes long."""
    done, last_report = 0, time.monotonic()
    show: Callable[[float, str], None] | None = None

    def count(images: int) -> None:
        nonlocal done, last_report, show
        done += images
        if time.monotonic() - last_report < SECONDS_OF_SILENCE and (show is None or done < draw.count):
            return
        last_report = time.monotonic()
        name = "".join(letter if letter.isalnum() else "-" for letter in draw.kind.lower())
        show = show or progress_reporter(run, f"{draw.purpose}-{name}-{draw.first}")
        show(done / draw.count, f"{done:,} of {draw.count:,} images")

    return count


def drawing_cost(run: Run) -> dict[str, float]:
    """Return the cost of drawing the run's images: `seconds` summed over shards, `images_per_second` of one worker.

    The mapping is empty if nothing was drawn or if the cost of a shard is unknown.
    """
    records = [read_shard_record(shard_path(run, draw)) for draw in plan(run)]
    known = [record for record in records if record is not None and "seconds" in record]
    if not known or len(known) < len(records):
        return {}
    images = sum(record["images"]["count"] for record in known)
    seconds = sum(record["seconds"] for record in known)
    return {
        "images": images,
        "bytes": sum(record["bytes"] for record in known),
        "seconds": round(seconds, 3),
        "images_per_second": round(images / max(seconds, 1e-3), 1),
    }


@step("synthesize")
def assemble_images(run: Run, draws: list[Draw]) -> None:
    """Link the shards into the run's image folder and write its manifest: shards, sources and query batches."""
    if not run.params.data.of_images:
        _write_rows(run)
        return
    shards: dict[str, list[dict[str, object]]] = {"queries": [], "pretraining": []}
    with atomic_folder(run.folders.images) as folder:
        for number, draw in enumerate(draws):
            name, shard = f"{draw.purpose}-{number:05d}.npy", shard_path(run, draw)
            record = read_shard_record(shard)
            if record is None or not shard.is_file():
                raise ArtefactError(f"{shard} is not finished. Run the stage 'synthesize' again.")
            link(shard, folder / name)
            entry = {"file": name, "kind": draw.kind, "count": draw.count, "sha256": record["sha256"]}
            shards[draw.purpose].append(entry)
        pool = run.params.queries.shares().get(POOL, 0)
        if pool:
            images = _pool_images(run, pool)
            for purpose, part in (("queries", images[:pool]), ("unlabelled", images[pool:])):
                if not len(part):
                    continue
                name = f"{purpose}-pool.npy"
                write_array(folder / name, part)
                entry = {"file": name, "kind": POOL, "count": len(part), "sha256": file_digest(folder / name)}
                shards.setdefault(purpose, []).append(entry)
        manifest = {
            "size": in_json(run.params.data.size),
            "channels": run.params.data.channels,
            "seed": run.params.seed,
            "shards": shards,
            "batches": query_batches(run),
        }
        write_json(folder / "manifest.json", manifest)


def _pool_images(run: Run, count: int) -> np.ndarray:
    """Return the public pool in the order of the queries, at least `count` images, from the data's source.

    Raises:
        SettingError: If the pool has fewer images.
        LedgerError: If a release of the account protects one of the public records.
    """
    dataset = load_dataset(run)
    images = dataset.pool_images
    if images is None:
        raise SettingError("queries.sources contains `pool`, but data.pool is null. Set data.pool.")
    if count > len(images):
        raise SettingError(
            f"queries: the source `pool` needs {count:,} images, but data.pool={run.params.data.pool} has "
            f"{len(images):,}. Lower queries.count or the weight of `pool`."
        )
    publish(run, people_in(run, dataset))
    return images[pool_order(run.params.seed, len(images))]


def _write_rows(run: Run) -> None:
    """Write at most `queries.count` rows of a table, float32 [queries, features], and the encoding of the columns.

    Pretraining rows are drawn from the declared columns without reading the table, or are the table's public rows.
    """
    data, queries = run.params.data, run.params.queries
    generator = numpy_generator(run.params.seed, "queries.order")
    if data.has_public_records:
        publish(run, people_in(run, load_dataset(run)))
        rows, encoding = data.public_rows(run.root, seed=SPLIT_SEED)
        kind, declared = PUBLIC_ROWS, len(rows)
        # Files are often sorted; even a budget that ends early should be spent on all kinds of rows.
        rows = rows[generator.permutation(declared)[: queries.count]]
    else:
        encoding, kind, declared = data.declared_encoding(), DRAWN_ROWS, 0
        rows = encoding.apply(encoding.draw(queries.count, generator), "The drawn rows")
    # Near-equal batches: a stray last row would have no batch statistics.
    parts = np.array_split(np.arange(len(rows)), max(1, -(-len(rows) // queries.batch)))
    with atomic_folder(run.folders.images) as folder:
        path = folder / "queries-00000.npy"
        write_array(path, rows)
        shard = {"file": path.name, "kind": kind, "count": len(rows), "sha256": file_digest(path)}
        batches = [
            {"kind": kind, "source_start": int(part[0]), "first": int(part[0]), "count": len(part)} for part in parts
        ]
        write_json(
            folder / "manifest.json",
            {
                "columns": encoding.describe(),
                "shards": {"queries": [shard], "pretraining": []},
                "batches": batches,
                "declared": declared,
            },
        )


def query_batches(run: Run) -> list[dict[str, object]]:
    """Return the fixed batches of the queries: ranges of query indices with one source each."""
    turns = in_turns(run.params.queries.shares(), run.params.queries.batch)
    firsts = accumulate((count for _, _, count in turns), initial=0)
    return [
        {"kind": kind, "source_start": start, "first": first, "count": count}
        for (kind, start, count), first in zip(turns, firsts, strict=False)
    ]
