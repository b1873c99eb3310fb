"""dataset: read the private images, check them, and lay them down in the private zone."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.runtime.keys import site_key
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import Folders, atomic_folder, read_array, read_json, write_array, write_json
from terrine.data.dataset import Dataset, fingerprint
from terrine.data.pool import check_disjoint
from terrine.errors import SettingError

SPLIT_SEED = 0
"""Not the run's seed: who is in the training data must not change from run to run, or budgets would not add up."""


@step("dataset")
def prepare_dataset(run: Run) -> None:
    """Read the dataset that the parameters name and write its arrays and manifest.

    Everything is checked before the first byte is written; a bad file leaves what was there as it was.
    """
    dataset = load_dataset(run)
    dataset.validate()
    manifest = {
        **dataset.describe(),
        "class_names": list(dataset.class_names),
        "fingerprint": fingerprint(dataset, site_key(run)),
        **({"party_names": list(dataset.party_names)} if dataset.train_parties is not None else {}),
        **({"parts": check_disjoint(dataset)} if dataset.pool_images is not None else {}),
    }
    write_dataset(run.folders, dataset, manifest)


def write_dataset(folders: Folders, dataset: Dataset, manifest: dict[str, Any]) -> None:
    """Write the arrays of a dataset and what is said about it where stages look for them."""
    with atomic_folder(folders.dataset) as folder:
        write_array(folder / "train_images.npy", dataset.train_images)
        write_array(folder / "train_labels.npy", dataset.train_labels)
        write_array(folder / "train_names.npy", dataset.record_names)
        write_array(folder / "test_images.npy", dataset.test_images)
        write_array(folder / "test_labels.npy", dataset.test_labels)
        if dataset.train_groups is not None:
            write_array(folder / "train_groups.npy", dataset.train_groups)
        if dataset.train_parties is not None:
            write_array(folder / "train_parties.npy", dataset.train_parties)
        if dataset.pool_labels is not None:
            write_array(folder / "pool_labels.npy", dataset.pool_labels)
        write_json(folder / "manifest.json", manifest)


def load_dataset(run: Run) -> Dataset:
    """Read the dataset that the parameters name from its own source.

    Raises SettingError where the source does not say, as the parameters do, that anyone may read it.
    """
    settings = run.params.data
    dataset = settings.load(run.root, seed=SPLIT_SEED)
    if settings.public_benchmark and not dataset.public_benchmark:
        raise SettingError(
            f"data.public_benchmark is true, but the source of data.name={settings.name} does not say that anyone may "
            "read it. Set data.public_benchmark=false, ledger.account and ledger.epsilon; nothing was written."
        )
    return dataset


def read_pool_labels(folders: Folders) -> np.ndarray | None:
    """Return the labels of the public pool, int64 [images], which evaluation alone looks at; None without a pool."""
    path = folders.dataset / "pool_labels.npy"
    return read_array(path) if path.is_file() else None


def read_dataset(folders: Folders) -> Dataset:
    """Map the stored dataset; images stay on disk until they are asked for."""
    folder = folders.dataset
    manifest = read_json(folder / "manifest.json")
    groups, parties = folder / "train_groups.npy", folder / "train_parties.npy"
    return Dataset(
        name=manifest["name"],
        train_images=read_array(folder / "train_images.npy", memory_map=True),
        train_labels=read_array(folder / "train_labels.npy"),
        train_names=read_array(folder / "train_names.npy"),
        train_groups=read_array(groups) if groups.is_file() else None,
        test_images=read_array(folder / "test_images.npy", memory_map=True),
        test_labels=read_array(folder / "test_labels.npy"),
        class_names=tuple(manifest["class_names"]),
        public_benchmark=manifest["public_benchmark"],
        train_parties=read_array(parties) if parties.is_file() else None,
        party_names=tuple(manifest.get("party_names", ())),
        column_names=None if manifest.get("columns") is None else tuple(manifest["columns"]),
    )
