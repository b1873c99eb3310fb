"""partition: deal the records to teachers, each record to exactly one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.pipeline.dataset import read_dataset
from tasks.runtime.accounts import site_key
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import Folders, atomic_folder, read_array, write_array, write_json
from terrine.data import partition as partitions
from terrine.data.content_digest import exact_duplicates
from terrine.data.findings import labelled
from terrine.data.label_mix import label_histograms, summarise
from terrine.data.partition import protected_groups


def in_groups(count: int, size: int) -> list[range]:
    """Return the numbers 0 .. count - 1 in order, `size` to a group: who share a task."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def dealt_by(run: Run) -> dict[str, Any]:
    """Return the settings that decide how records are dealt, JSON values: which its manifest says."""
    params = run.params
    return {**params.partition.model_dump(mode="json"), "unit": params.privacy.unit, "seed": params.seed}


@step("partition")
def deal_records(run: Run) -> None:
    """Write the teacher of every record, every teacher's labels, and a manifest that proves that the parts are disjoint
    and cover the data."""
    dataset = read_dataset(run.folders)
    settings = run.params.partition
    groups = protected_groups(dataset, run.params.privacy.unit)
    assignment = settings.deal(dataset, groups, run.params.seed)
    proof = partitions.check(assignment, settings.teachers, groups, exact_duplicates(dataset.train_images))
    records, classes = labelled(dataset.train_labels)
    histograms = label_histograms(assignment[records], classes, settings.teachers, dataset.classes)
    sizes = np.bincount(assignment, minlength=settings.teachers)
    manifest = {
        **proof,
        "hash": partitions.partition_hash(assignment, site_key(run)),
        **dealt_by(run),
        "parties": list(dataset.party_names) if settings.kind == "party" else None,
        "labels": summarise(histograms, sizes),
    }
    with atomic_folder(run.folders.partition) as folder:
        write_array(folder / "assignment.npy", assignment)
        write_array(folder / "label_histograms.npy", histograms)
        write_json(folder / "manifest.json", manifest)


def read_assignment(folders: Folders) -> np.ndarray:
    """Return the teacher of every record, int64 [records]."""
    return read_array(folders.partition / "assignment.npy")
