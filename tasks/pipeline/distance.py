"""distance: how far each source of queries is from the private data. A private figure, in the private zone.

It answers "which images serve my data" without a label and without a teacher (docs/components.md). It is a
function of private images that no noise covers, so it must not decide anything that is published: choose sources by it
on data that may be looked at, or by a choice that is paid for.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from tasks.artefacts.images import read_queries
from tasks.artefacts.records import read_dataset
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import Folders, atomic_folder, read_json, write_json
from terrine.device import resolve_device
from terrine.npy import Rows
from terrine.synthetic.distance import (
    SAMPLE,
    Distance,
    chosen,
    columns_extractor,
    image_distances,
    scattering_extractor,
)

NOTICE = "PRIVATE: computed from private images, covered by no noise. Do not publish."
FEWEST = 4
"""A source with fewer queries than this has no distance."""


@step("distance")
def measure_distance(run: Run) -> None:
    """Write the kernel distance between the private training images and the queries, all and source by source."""
    dataset = read_dataset(run.folders)
    queries = read_queries(run.folders)
    extractor, seed, numbers = columns_extractor(), run.params.seed, queries.by_source()
    if dataset.column_names is None:
        extractor = scattering_extractor(run.params.data.channels, resolve_device(run.params.device))
    sets = {
        "all": queries.images,
        **{f"source {kind}": _sample(queries.images, numbers[kind], seed) for kind in numbers},
    }
    enough = {name: images for name, images in sets.items() if len(images) >= FEWEST}
    found = image_distances(extractor, enough, dataset.train_images, seed=seed)
    figures = {
        "notice": NOTICE,
        "extractor": extractor.name,
        "private_records": dataset.records,
        "all": _values(found.get("all")),
        "sources": {kind: _values(found.get(f"source {kind}")) for kind in numbers},
    }
    with atomic_folder(run.folders.distance) as folder:
        write_json(folder / "figures.json", figures)


def _sample(images: Rows, numbers: np.ndarray, seed: int) -> np.ndarray:
    """Read of a source's images as many as are looked at."""
    return np.asarray(images[numbers[chosen(len(numbers), SAMPLE, seed, "synthetic")]])


def _values(figure: Distance | None) -> dict[str, float] | None:
    return None if figure is None else asdict(figure)


def read_distance(folders: Folders) -> dict[str, Any] | None:
    """Return the figures of a run, None where they were not made."""
    path = folders.distance / "figures.json"
    return read_json(path) if path.is_file() else None


def distance_metrics(folders: Folders) -> dict[str, float]:
    """Return the distances as flat names and numbers, for a log that may hold private figures."""
    figures = read_distance(folders)
    if figures is None:
        return {}
    named = {"all": figures["all"], **figures["sources"]}
    return {
        f"distance_{name.replace(':', '-').replace('+', '-')}": figure["distance"]
        for name, figure in named.items()
        if figure is not None
    }


def distance_rows(folders: Folders) -> dict[str, Any] | None:
    """Return the distances as the report shows them, nearest first; None where they were not made."""
    figures = read_distance(folders)
    if figures is None:
        return None
    known = {kind: figure for kind, figure in figures["sources"].items() if figure is not None}
    nearest = sorted(known.items(), key=lambda item: (item[1]["distance"], item[0]))
    if figures["all"] is not None and len(known) > 1:
        nearest.append(("all queries together", figures["all"]))
    rows = [
        {"name": name, "text": f"{figure['distance']:.3f} ± {figure['standard_error']:.3f}", "rows": figure["rows"]}
        for name, figure in nearest
    ]
    return {"extractor": figures["extractor"], "rows": rows}
