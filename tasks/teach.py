"""teach: one pass of the private images through the backbone, then groups of heads, each group one task.

Features and finished groups are kept in the run's private work folder under the digest of everything they depend on,
so an interrupted stage goes on where it stopped and never trains a finished group again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tasks.dataset import read_dataset
from tasks.params import digest
from tasks.partition import read_assignment
from tasks.pretrain import read_backbone
from tasks.run import Run
from tasks.step import step
from tasks.store import (
    Folders,
    atomic_file,
    atomic_folder,
    file_digest,
    read_array,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from terrine.device import resolve_device
from terrine.models.backbone import features_in_batches
from terrine.teachers.linear import LinearHeads, LinearSettings, train_heads


def work_folder(run: Run) -> Path:
    """Return where this very training keeps what it has finished."""
    folders = run.folders
    identity = digest(
        {
            "dataset": read_json(folders.dataset / "manifest.json")["fingerprint"],
            "partition": read_json(folders.partition / "manifest.json")["hash"],
            "backbone": file_digest(folders.backbone / "backbone.safetensors"),
            "teachers": run.params.teachers.model_dump(mode="json", exclude={"per_task"}),
            "seed": run.params.seed,
        }
    )
    return folders.work / f"teach-{identity}"


def groups(run: Run) -> list[range]:
    """Return the teachers of each task."""
    count, size = run.params.partition.teachers, run.params.teachers.per_task
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def record_batches(assignment: np.ndarray, teachers: int, most: int) -> list[np.ndarray]:
    """Return batches of record numbers, each within one teacher's part.

    Batch statistics couple the records of a batch; were a batch to mix teachers, one record would touch several of
    them and the privacy guarantee would not hold. A part is cut into near-equal batches of at most `most` records.
    """
    order = np.argsort(assignment, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(assignment, minlength=teachers))[:-1])
    batches = []
    for part in parts:
        batches.extend(np.array_split(part, max(1, -(-len(part) // most))))
    return batches


@step("private features")
def extract_features(run: Run) -> None:
    """Compute float32 [records, features] of the private images once, each teacher's part by itself."""
    path = work_folder(run) / "features.npy"
    if path.is_file():
        return
    dataset = read_dataset(run.folders)
    settings = run.params.teachers
    batches = record_batches(read_assignment(run.folders), run.params.partition.teachers, settings.feature_batch)
    device = resolve_device(run.params.device)
    backbone = read_backbone(run.folders).to(device)
    features = features_in_batches(backbone, dataset.train_images, batches, settings.statistics, device)
    with atomic_file(path) as stream:
        np.save(stream, features, allow_pickle=False)


@step("teachers", retries=2)
def train_group(run: Run, teachers: range) -> None:
    """Train the heads of a group of teachers as one batched problem, unless the group is on disk."""
    path = group_path(run, teachers)
    if path.is_file():
        return
    dataset = read_dataset(run.folders)
    heads = train_heads(
        read_array(work_folder(run) / "features.npy", memory_map=True),
        dataset.train_labels,
        read_assignment(run.folders),
        list(teachers),
        dataset.classes,
        linear_settings(run),
        seed=run.params.seed,
        device=resolve_device(run.params.device),
    )
    write_tensors(path, heads.to_arrays())


def linear_settings(run: Run) -> LinearSettings:
    """Return the teachers' settings in the terms of `terrine.teachers.linear`."""
    settings = run.params.teachers
    return LinearSettings(
        optimiser=settings.optimiser,
        ridge=settings.ridge,
        epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        batch=settings.batch,
    )


def group_path(run: Run, teachers: range) -> Path:
    """Return where a group's heads are kept until all groups are finished."""
    return work_folder(run) / f"group-{teachers.start:06d}-{teachers.stop:06d}.safetensors"


@step("collect teachers")
def collect_teachers(run: Run) -> None:
    """Join the groups into one artefact that is the same whatever the grouping was, and clear the work folder."""
    parts = [read_tensors(group_path(run, teachers)) for teachers in groups(run)]
    heads = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    with atomic_folder(run.folders.teachers) as folder:
        write_tensors(folder / "heads.safetensors", heads)
        write_json(
            folder / "manifest.json",
            {
                "kind": run.params.teachers.kind,
                "teachers": run.params.partition.teachers,
                "statistics": run.params.teachers.statistics,
            },
        )
    shutil.rmtree(work_folder(run), ignore_errors=True)


def read_heads(folders: Folders) -> LinearHeads:
    """Read the heads of all teachers."""
    return LinearHeads.from_arrays(read_tensors(folders.teachers / "heads.safetensors"))
