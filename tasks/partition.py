"""partition: deal the records to teachers, each record to exactly one."""

from __future__ import annotations

import numpy as np

from tasks.dataset import read_dataset
from tasks.keys import site_key
from tasks.run import Run
from tasks.step import step
from tasks.store import Folders, atomic_folder, read_array, write_array, write_json
from terrine.data import partition as partitions
from terrine.data.dataset import Dataset
from terrine.data.duplicates import exact_duplicates
from terrine.errors import SettingError


@step("partition")
def deal_records(run: Run) -> None:
    """Write the teacher of every record, and a manifest that proves the parts are disjoint and cover the data."""
    dataset = read_dataset(run.folders)
    settings = run.params.partition
    groups = protected_groups(run, dataset)
    assignment = partitions.iid(len(dataset.train_labels), settings.teachers, groups=groups, seed=run.params.seed)
    manifest = partitions.check(assignment, settings.teachers, groups, exact_duplicates(dataset.train_images))
    with atomic_folder(run.folders.partition) as folder:
        write_array(folder / "assignment.npy", assignment)
        write_json(folder / "manifest.json", {**manifest, "hash": partitions.partition_hash(assignment, site_key(run))})


def protected_groups(run: Run, dataset: Dataset) -> np.ndarray | None:
    """Return the group of each record where groups are what is protected, else None.

    Exact copies of an image are not kept together: which records are copies depends on their content, and a partition
    that reads content can move other records when one of them is exchanged. Copies are counted in the dataset's
    manifest; data with several images of a person needs privacy.unit=group.

    Raises SettingError when groups are to be protected and the data has none.
    """
    if run.params.privacy.unit == "record":
        return None
    if dataset.train_groups is None:
        raise SettingError(
            f"privacy.unit=group, but {dataset.name} has no groups. Give every record a group "
            "(docs/your-own-images.md), or set privacy.unit=record."
        )
    return dataset.train_groups


def read_assignment(folders: Folders) -> np.ndarray:
    """Return the teacher of every record, int64 [records]."""
    return read_array(folders.partition / "assignment.npy")
