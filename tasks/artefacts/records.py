"""Reading and writing of a run's private records and their assignment to teachers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tasks.runtime.accounts import PEOPLE
from tasks.runtime.run import SPLIT_SEED, Run
from tasks.runtime.store import Folders, atomic_folder, read_array, write_array, write_json
from tasks.runtime.task import open_source, recorded_task, task_from
from terrine.data.dataset import Dataset
from terrine.data.ordered import Scale
from terrine.errors import SettingError
from terrine.privacy.ledger.people import People

_ARRAYS = ("train_images", "train_labels", "train_names", "test_images", "test_labels")


_OPTIONAL = ("train_groups", "train_parties", "test_names", "test_groups", "test_numbers")


def write_dataset(folders: Folders, dataset: Dataset, manifest: dict[str, Any], people: People | None = None) -> None:
    """Write the artefact `dataset`: arrays, manifest and digests of records."""
    arrays = {name: getattr(dataset, name) for name in (*_ARRAYS, *_OPTIONAL, "pool_labels")}
    with atomic_folder(folders.dataset) as folder:
        for name, array in (arrays | {"train_names": dataset.record_names}).items():
            if array is not None:
                write_array(folder / f"{name}.npy", array)
        if people is not None:
            people.save(folder / PEOPLE)
        write_json(folder / "manifest.json", manifest)


def load_dataset(run: Run) -> Dataset:
    """Read a run's dataset from its source with the classes of its account and edition.

    Raises:
        SettingError: If private data are declared public, or records are the unit of privacy although groups determine
            which records are public.
    """
    settings = run.params.data
    with open_source(run) as source:
        dataset = source.load(run.root, seed=SPLIT_SEED)
    if settings.public_benchmark and not dataset.public_benchmark:
        raise SettingError(
            f"data.public_benchmark is true, but data.name={settings.name} is not a public source. Set "
            "data.public_benchmark=false, ledger.account and ledger.epsilon. Nothing was written."
        )
    dataset = _with_classes(run, getattr(source, "classes", None), dataset)
    drawn_by_group = dataset.test_groups is not None and getattr(settings, "pool", None) == "test"
    if drawn_by_group and run.params.privacy.unit == "record" and not settings.public_benchmark:
        raise SettingError(
            "privacy.unit=record also protects to whom an image belongs. With data.pool=test groups select the public "
            "images, so an image exchanged for another person's could become public. Set privacy.unit=group. Nothing "
            "was written."
        )
    return dataset


def _with_classes(run: Run, declared: Sequence[str] | None, dataset: Dataset) -> Dataset:
    """Return a dataset with the declared or recorded classes, even if a plugin's source only has labels."""
    if declared is None and task_from(run.params.data, dataset.class_names, declared=dataset.declared).found:
        first = recorded_task(run)
        declared = None if first is None else first.names
    return dataset if declared in (None, dataset.class_names) else dataset.with_classes(declared)


def read_pool_labels(folders: Folders) -> np.ndarray | None:
    """Return the labels of the public pool, int64 [images], or None. Only the evaluation uses these labels."""
    path = folders.dataset / "pool_labels.npy"
    return read_array(path) if path.is_file() else None


def read_dataset(folders: Folders) -> Dataset:
    """Read the stored dataset; images are memory-mapped."""
    folder = folders.dataset
    manifest = folders.dataset_manifest()
    stored = [*_ARRAYS, *(name for name in _OPTIONAL if (folder / f"{name}.npy").is_file())]
    arrays = {name: read_array(folder / f"{name}.npy", memory_map=name.endswith("_images")) for name in stored}
    return Dataset(
        name=manifest["name"],
        class_names=tuple(manifest["class_names"]),
        declared=manifest["declared"],
        public_benchmark=manifest["public_benchmark"],
        party_names=tuple(manifest.get("party_names", ())),
        column_names=None if manifest.get("columns") is None else tuple(manifest["columns"]),
        scale=Scale(tuple(manifest["class_names"]), tuple(manifest["scale"]["edges"])) if "scale" in manifest else None,
        **cast(dict[str, Any], {"train_groups": None, **arrays}),
    )


def protected_units(run: Run, dataset: Dataset) -> np.ndarray:
    """Return the unit of each training record [records]: its group if groups are protected, else its name."""
    units = dataset.train_groups if run.params.privacy.unit == "group" else dataset.record_names
    assert units is not None, "the partition has refused groups that are protected and not given"
    return units


def in_groups(count: int, size: int) -> list[range]:
    """Split the indices 0 .. count - 1 into groups of `size`."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def partition_settings(run: Run) -> dict[str, Any]:
    """Return the settings that determine the partition, as JSON values for its manifest."""
    params = run.params
    return {**params.partition.model_dump(mode="json"), "unit": params.privacy.unit, "seed": params.seed}


def read_assignment(folders: Folders) -> np.ndarray:
    """Return the teacher of each record, int64 [records]."""
    return read_array(folders.partition / "assignment.npy")
