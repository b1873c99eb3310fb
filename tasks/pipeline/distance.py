"""distance: kernel distance between the private data and each source of queries.

The distance helps to choose image sources without labels or teachers. It is private and has no noise, so a choice
based on it is not covered by ε: choose sources on public data.
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
from terrine.synthetic.distance import (
    SAMPLE,
    Extractor,
    draw_rows,
    image_distances,
    scattering_extractor,
)

NOTICE = "PRIVATE: computed from private images, covered by no noise. Do not publish."
FEWEST = 4
"""Number of queries below which a source has no distance."""


@step("distance")
def measure_distance(run: Run) -> None:
    """Write the kernel distance between the private training images and the queries, overall and by source."""
    dataset, queries = read_dataset(run.folders), read_queries(run.folders)
    extractor, seed = Extractor("columns", lambda rows: rows), run.params.seed
    if dataset.column_names is None:
        extractor = scattering_extractor(run.params.data.channels, resolve_device(run.params.device))
    sets: dict[str, Any] = {"all": queries.images}
    for kind, numbers in queries.by_source().items():
        sampled = numbers[draw_rows(len(numbers), SAMPLE, seed, "synthetic")]
        sets[f"source {kind}"] = np.asarray(queries.images[sampled])
    enough = {name: images for name, images in sets.items() if len(images) >= FEWEST}
    found = image_distances(extractor, enough, dataset.train_images, seed=seed)
    values = {name: asdict(found[name]) if name in found else None for name in sets}
    figures = {
        "notice": NOTICE,
        "extractor": extractor.name,
        "private_records": dataset.records,
        "all": values.pop("all"),
        "sources": {name.removeprefix("source "): value for name, value in values.items()},
    }
    with atomic_folder(run.folders.distance) as folder:
        write_json(folder / "figures.json", figures)


def read_distance(folders: Folders) -> dict[str, Any] | None:
    """Return the distance figures of a run, or None if they have not been computed."""
    path = folders.distance / "figures.json"
    return read_json(path) if path.is_file() else None


def distance_metrics(folders: Folders) -> dict[str, float]:
    """Return the distances by metric name for a log of private figures."""
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
    """Return the distances for the report, nearest first, or None if they have not been computed."""
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
