"""partition: assign each record to exactly one teacher."""

from __future__ import annotations

import numpy as np

from tasks.artefacts.records import partition_settings, read_dataset
from tasks.runtime.accounts import site_key
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import atomic_folder, write_array, write_json
from terrine.data import partition as partitions
from terrine.data.content_digest import exact_duplicates
from terrine.data.findings import labelled
from terrine.data.label_mix import label_histograms, summarise
from terrine.data.partition import protected_groups


@step("partition")
def deal_records(run: Run) -> None:
    """Write each record's teacher, the teachers' labels, and a manifest with the verification of disjoint parts."""
    dataset = read_dataset(run.folders)
    settings = run.params.partition
    groups = protected_groups(dataset, run.params.privacy.unit)
    assignment = settings.assign(dataset, groups, run.params.seed)
    proof = partitions.check(assignment, settings.teachers, groups, exact_duplicates(dataset.train_images))
    records, classes = labelled(dataset.train_labels)
    histograms = label_histograms(assignment[records], classes, settings.teachers, dataset.classes)
    sizes = np.bincount(assignment, minlength=settings.teachers)
    manifest = {
        **proof,
        "hash": partitions.partition_hash(assignment, site_key(run)),
        **partition_settings(run),
        "parties": list(dataset.party_names) if settings.kind == "party" else None,
        "labels": summarise(histograms, sizes),
    }
    with atomic_folder(run.folders.partition) as folder:
        write_array(folder / "assignment.npy", assignment)
        write_array(folder / "label_histograms.npy", histograms)
        write_json(folder / "manifest.json", manifest)
