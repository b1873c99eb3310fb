"""Private records of a run and the teachers that they are dealt to, as stages read them."""

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
    """Write the arrays of a dataset and what is said about it where stages look for them."""
    arrays = {name: getattr(dataset, name) for name in (*_ARRAYS, *_OPTIONAL, "pool_labels")}
    with atomic_folder(folders.dataset) as folder:
        for name, array in (arrays | {"train_names": dataset.record_names}).items():
            if array is not None:
                write_array(folder / f"{name}.npy", array)
        if people is not None:
            people.save(folder / PEOPLE)
        write_json(folder / "manifest.json", manifest)


def load_dataset(run: Run) -> Dataset:
    """Read the dataset that the parameters name from its own source, with the classes of its account and edition.

    Raises SettingError where the source does not say, as the parameters do, that anyone may read it.
    """
    settings = run.params.data
    with open_source(run) as source:
        dataset = source.load(run.root, seed=SPLIT_SEED)
    if settings.public_benchmark and not dataset.public_benchmark:
        raise SettingError(
            f"data.public_benchmark is true, but the source of data.name={settings.name} does not say that anyone may "
            "read it. Set data.public_benchmark=false, ledger.account and ledger.epsilon; nothing was written."
        )
    dataset = _with_classes(run, getattr(source, "classes", None), dataset)
    drawn_by_group = dataset.test_groups is not None and getattr(settings, "pool", None) == "test"
    if drawn_by_group and run.params.privacy.unit == "record" and not settings.public_benchmark:
        raise SettingError(
            "privacy.unit=record protects an image with all that is known of it, also whose it is, and groups decide "
            "which images data.pool=test makes public: one that is exchanged for another person's could be published. "
            "Set privacy.unit=group; nothing was written."
        )
    return dataset


def _with_classes(run: Run, declared: Sequence[str] | None, dataset: Dataset) -> Dataset:
    """Return a dataset with the declared or recorded classes, also from a plugin's source that knows labels alone."""
    if declared is None and task_from(run.params.data, dataset.class_names, declared=dataset.declared).found:
        first = recorded_task(run)
        declared = None if first is None else first.names
    return dataset if declared in (None, dataset.class_names) else dataset.with_classes(declared)


def read_pool_labels(folders: Folders) -> np.ndarray | None:
    """Return the labels of the public pool, int64 [images], which evaluation alone looks at; None without a pool."""
    path = folders.dataset / "pool_labels.npy"
    return read_array(path) if path.is_file() else None


def read_dataset(folders: Folders) -> Dataset:
    """Map the stored dataset; images stay on disk until they are asked for."""
    folder = folders.dataset
    manifest = folders.dataset_manifest()
    there = [*_ARRAYS, *(name for name in _OPTIONAL if (folder / f"{name}.npy").is_file())]
    arrays = {name: read_array(folder / f"{name}.npy", memory_map=name.endswith("_images")) for name in there}
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
    """Return who each training record belongs to, [records]: its group where groups are protected, else its name."""
    units = dataset.train_groups if run.params.privacy.unit == "group" else dataset.record_names
    assert units is not None, "the partition has refused groups that are protected and not given"
    return units


def in_groups(count: int, size: int) -> list[range]:
    """Return the numbers 0 .. count - 1 in order, `size` to a group: who share a task."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def partition_settings(run: Run) -> dict[str, Any]:
    """Return the settings that decide how records are dealt, JSON values: which its manifest says."""
    params = run.params
    return {**params.partition.model_dump(mode="json"), "unit": params.privacy.unit, "seed": params.seed}


def read_assignment(folders: Folders) -> np.ndarray:
    """Return the teacher of every record, int64 [records]."""
    return read_array(folders.partition / "assignment.npy")
