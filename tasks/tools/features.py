"""Features of a whole data set under one backbone, kept in a folder: what tables of rival methods are measured on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tasks.pipeline.features import rows_in_parts
from tasks.runtime.store import atomic_file
from terrine.aggregation.records import Records, Whitening
from terrine.data.dataset import Dataset
from terrine.models.architecture import Architecture
from terrine.models.backbone import features_in_batches
from terrine.models.moments import bound_for, set_statistics, statistics_from, unit_vectors
from terrine.privacy.clipped_mean import ClippedMean
from terrine.privacy.noise import ReplayNoise
from terrine.synthetic.queries import draw

Kept = dict[str, np.ndarray]
"""Features of `train`, `test` and `queries`, of each image by itself, with `labels` and `test_labels`."""


def kept_features(
    load: Callable[[], Dataset], backbone: Architecture, path: Path, mean: ClippedMean | None = None
) -> Kept:
    """Return the features of a data set, and of 6,000 synthetic images that the backbone is fitted to.

    load: reads the records, of a public benchmark; only called where nothing is kept in `path`, an .npz file. mean: by
    which moments are released, with replayed noise, that private images are normalised by; None: by those of the
    synthetic images.
    """
    if not path.is_file():
        parts, data = path.with_suffix(".parts"), load()
        queries = draw({"dead_leaves": 1, "stylegan": 1}, count=6000, like=data)
        fitted = backbone.fit(queries)
        made = {"queries": features_in_batches(fitted, queries.inputs, queries.batches, "original", "cpu")}
        if mean is not None:
            bound = bound_for(fitted, None, mean.noise_multiplier)
            units = unit_vectors(fitted, data.train_images, np.arange(data.records), bound)
            released = mean.mean(mean.release(units, ReplayNoise(0)))
            set_statistics(fitted, statistics_from(fitted, *released, bound))
        for part, images in (("train", data.train_images), ("test", data.test_images)):
            made[part] = rows_in_parts(parts / f"{part}.npy", fitted, images, np.copy)
        with atomic_file(path) as stream:
            np.savez(stream, **made, labels=data.train_labels, test_labels=data.test_labels)
        shutil.rmtree(parts)
    with np.load(path) as kept:
        return dict(kept)


def vectors_of(kept: Kept, unit: np.ndarray | None = None) -> tuple[Records, np.ndarray, np.ndarray]:
    """Return the records that sums add up, and vectors and labels of the test images.

    unit: int64 [records], whose each record is; None: each is a unit of its own.
    """
    whitening, labels = Whitening.of(kept["queries"]), kept["labels"]
    train, test = (whitening.vectors(kept[part]) for part in ("train", "test"))
    unit = np.arange(len(labels)) if unit is None else unit
    return Records.of(train, labels, unit, int(labels.max()) + 1), test, kept["test_labels"]
