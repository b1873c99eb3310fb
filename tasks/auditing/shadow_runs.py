"""Shadow runs: the stages of a run on other records, in a separate folder, with a temporary ledger.

The public images and backbone are those of the run; everything that depends on records is recomputed. Records keep
their names, and a unit's teacher is a function of only its name. So every unit in a shadow run has the same teacher as
in the run, regardless of the other units. Nothing is released or charged to the run's ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tasks.artefacts.records import write_dataset
from tasks.config.params import Params
from tasks.config.sections import ReleaseSettings
from tasks.config.values import digest
from tasks.runtime.run import Run
from tasks.runtime.store import link
from terrine.data.dataset import Dataset
from terrine.privacy.noise import FloatArray, ReplayNoise

NOTICE = "PRIVATE: computed from the records themselves. Do not publish."


class NoNoise(ReplayNoise):
    """Noise source that returns zeros, to measure an audit's power; results are reduced to one private figure."""

    def gaussian(self, shape: int | tuple[int, ...], sigma: float) -> FloatArray:
        return np.zeros(shape)

    def laplace(self, shape: int | tuple[int, ...], scale: float) -> FloatArray:
        return np.zeros(shape)


Progress = Callable[[float, str], None]
"""Function called with the share done and a short text."""


def shadow_run(run: Run, records: Dataset, root: Path) -> Run:
    """Return a run under `root` with its dataset on disk and the public artefacts of `run`.

    `records` replace the training records.
    """
    ledger = run.params.ledger.model_copy(
        update={"url": "sqlite:///ledger.db", "key": Path("key"), "store": Path("releases")}
    )
    shadow = Run(root, run.name, run.params.model_copy(update={"ledger": ledger, "release": ReleaseSettings()}))
    # A separate fingerprint, so that the shadow run's features and teachers are never mistaken for those of the run.
    own = digest([records.record_names.tolist(), records.train_labels.tolist(), root.name], 32)
    manifest = run.folders.dataset_manifest()
    write_dataset(shadow.folders, records, {**manifest, "fingerprint": f"shadow {own}"})
    for folder in (run.folders.images, run.folders.backbone, run.folders.start):
        if folder.is_dir():
            link(folder, shadow.root / folder.relative_to(run.root))
    for features in (run.root / "data" / "public" / "shared").glob("features-*.npy"):
        link(features, shadow.root / features.relative_to(run.root))
    return shadow


def units_of(dataset: Dataset, params: Params) -> np.ndarray:
    """Return the index of each record's unit (its name or its group), int64 [records]."""
    codes = dataset.record_names
    if params.privacy.unit == "group" and dataset.train_groups is not None:
        codes = dataset.train_groups
    return np.unique(codes, return_inverse=True)[1]


def members(dataset: Dataset, member: np.ndarray) -> Dataset:
    """Return the records selected by `member`, bool [records], under their original names."""
    return replace(
        dataset,
        train_images=dataset.train_images[member],
        train_labels=dataset.train_labels[member],
        train_names=dataset.record_names[member],
        train_groups=None if dataset.train_groups is None else dataset.train_groups[member],
        train_parties=None if dataset.train_parties is None else dataset.train_parties[member],
    )
