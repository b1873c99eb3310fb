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
from terrine.data.parties import check_whole
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
    assignment = assign(run, dataset, groups)
    proof = partitions.check(assignment, settings.teachers, groups, exact_duplicates(dataset.train_images))
    histograms = label_histograms(assignment, dataset.train_labels, settings.teachers, dataset.classes)
    manifest = {
        **proof,
        "hash": partitions.partition_hash(assignment, site_key(run)),
        "kind": settings.kind,
        "alpha": settings.alpha,
        "similarity": settings.similarity,
        "parties": list(dataset.party_names) if settings.kind == "party" else None,
        "labels": summarise(histograms),
    }
    with atomic_folder(run.folders.partition) as folder:
        write_array(folder / "assignment.npy", assignment)
        write_array(folder / "label_histograms.npy", histograms)
        write_json(folder / "manifest.json", manifest)


def assign(run: Run, dataset: Dataset, groups: np.ndarray | None) -> np.ndarray:
    """Return the teacher of every record, int64 [records], as the parameters deal them.

    `groups`, int64 [records] or None, are the units where groups are protected; else the names of records are. Raises
    SettingError or InputError when there are too few units for the teachers, or other parties than teachers.
    """
    settings, seed = run.params.partition, run.params.seed
    labels = dataset.train_labels
    if settings.kind == "party":
        return _by_party(settings.teachers, dataset, groups)
    if settings.alpha is not None:
        return partitions.dirichlet(labels, settings.teachers, settings.alpha, groups=groups, seed=seed)
    if settings.similarity is not None:
        return partitions.by_similarity(labels, settings.teachers, settings.similarity, groups=groups, seed=seed)
    return partitions.iid(len(labels), settings.teachers, names=dataset.record_names, groups=groups, seed=seed)


def _by_party(teachers: int, dataset: Dataset, groups: np.ndarray | None) -> np.ndarray:
    """Make every party a teacher, once there are as many, and no group is with several."""
    parties, names = dataset.train_parties, dataset.party_names
    if parties is None:
        raise SettingError(
            f"partition.kind=party, but {dataset.name} does not say which party holds a record. Give every record a "
            "party (docs/partitions.md), or use partition.kind=iid."
        )
    if teachers != len(names):
        raise SettingError(
            f"partition.teachers is {teachers}, but {dataset.name} names {len(names)} parties, and with "
            f"partition.kind=party each is one teacher. Set partition.teachers={len(names)}."
        )
    if groups is not None:
        check_whole(groups, parties, names)
    return parties


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
