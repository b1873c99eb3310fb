"""partition: deal the records to teachers, each record to exactly one."""

from __future__ import annotations

import numpy as np

from tasks.pipeline.dataset import read_dataset
from tasks.runtime.keys import site_key
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import Folders, atomic_folder, read_array, write_array, write_json
from terrine.data import partition as partitions
from terrine.data.dataset import Dataset
from terrine.data.duplicates import exact_duplicates
from terrine.data.label_mix import label_histograms, summarise
from terrine.errors import SettingError


def in_groups(count: int, size: int) -> list[range]:
    """Return the numbers 0 .. count - 1 in order, `size` to a group: who share a task."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


@step("partition")
def deal_records(run: Run) -> None:
    """Write the teacher of every record, every teacher's labels, and a manifest that proves that the parts are disjoint
    and cover the data."""
    dataset = read_dataset(run.folders)
    settings = run.params.partition
    groups = protected_groups(run, dataset)
    assignment = settings.deal(dataset, groups, run.params.seed)
    proof = partitions.check(assignment, settings.teachers, groups, exact_duplicates(dataset.train_images))
    histograms = label_histograms(assignment, dataset.train_labels, settings.teachers, dataset.classes)
    manifest = {
        **proof,
        "hash": partitions.partition_hash(assignment, site_key(run)),
        **settings.model_dump(mode="json"),
        "parties": list(dataset.party_names) if settings.kind == "party" else None,
        "labels": summarise(histograms),
    }
    with atomic_folder(run.folders.partition) as folder:
        write_array(folder / "assignment.npy", assignment)
        write_array(folder / "label_histograms.npy", histograms)
        write_json(folder / "manifest.json", manifest)


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
