"""teach: extract features of the private images if teachers need them, and train teachers, one group per task.

Intermediate results are kept in the run's private work folder under the digest of their inputs, so an interrupted stage
resumes with the next group or, for networks and estimators, the next teacher. If memory runs out, a group is halved.

A teacher with too few records is not trained. Too few records are not an error, because the failure of a run would
reveal facts about records. The private manifest lists such teachers; `terrine.teachers.ensemble` defines their votes.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.artefacts.images import read_backbone
from tasks.artefacts.records import in_groups, read_assignment, read_dataset
from tasks.artefacts.teachers import (
    ABOUT_FEATURES,
    FEATURES,
    HEADS,
    group_name,
    load_records,
    teacher_file,
    teacher_kind,
    teachers_made_from,
    teaching_folder,
    voter_count,
)
from tasks.config.values import digest
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import atomic_file, atomic_folder, link, read_tensors, tensor_names, write_json, write_tensors
from terrine.data.findings import labelled
from terrine.device import resolve_device
from terrine.files import file_digest
from terrine.teachers.memory import train_within_memory
from terrine.teachers.networks import FinetuneKind
from terrine.teachers.records import Arrays, count_teachers_missing_class, private_features

UNTRAINED = "untrained"
"""Name of the array of untrained teachers in a group's file, or of the only array in an untrained teacher's file."""

_logger = logging.getLogger(__name__)


def groups(run: Run) -> list[range]:
    """Return the teachers, or blocks of averaged teachers, of each task."""
    return in_groups(voter_count(run), run.params.teachers.per_task)


@step("nothing to teach")
def nothing_taught(run: Run) -> None:
    """Write the artefact of a run that sums records and has no teachers."""
    about: dict[str, Any] = {"untrained": [], "files": {}}
    manifest = {"kind": None, "teachers": 0, "statistics": None, "stacked": False, "teachers_missing_a_class": 0}
    with atomic_folder(run.folders.teachers) as folder:
        write_json(folder / "manifest.json", {**manifest, **about, "digest": digest(about, 64)})


@step("private features")
def extract_features(run: Run) -> None:
    """Compute features of the private images, float32 [records, features], separately for each teacher's part.

    No features are needed for teachers that learn from images, or for tables, whose columns are the features.
    """
    settings, device = run.params.teachers, _device(run)
    path, about = (teaching_folder(run) / name for name in (FEATURES, ABOUT_FEATURES))
    dataset = read_dataset(run.folders)
    if about.is_file() or dataset.column_names is not None or settings.inputs != "features":
        return
    assignment = read_assignment(run.folders)
    features = private_features(
        read_backbone(run.folders),
        settings.augmented_images(dataset.train_images, assignment, seed=run.params.seed),
        settings.repeat_for_copies(assignment),
        settings.statistics,
        most=settings.feature_batch,
        device=device,
    )
    with atomic_file(path) as stream:
        np.save(stream, features.rows, allow_pickle=False)
    write_json(about, {"partition": features.partition, "min_records": features.min_records})


def _device(run: Run) -> torch.device:
    """Return the device for training; see `Teachers.refuse_shared_passes` for errors."""
    device = resolve_device(run.params.device)
    run.params.teachers.refuse_shared_passes(device, public=run.params.data.public_benchmark)
    return device


@step("teachers", retries=2)
def train_group(run: Run, teachers: range) -> None:
    """Train the teachers of a group that are not on disk, in halves if memory does not suffice."""
    kind = teacher_kind(run)
    path = _finished_folder(run) / group_name(teachers)
    missing = list(teachers)
    if kind.stacked and path.is_file():
        return
    if not kind.stacked:
        missing = [teacher for teacher in teachers if not teacher_path(run, teacher).is_file()]
        if not missing:
            return
    records = load_records(run, run.params.teachers.inputs)
    device = _device(run)
    finished: dict[int, Arrays] = {}

    def keep(teacher: int, state: Arrays) -> None:
        finished[teacher] = state if kind.stacked else {}
        if not kind.stacked:
            write_tensors(teacher_path(run, teacher), state)

    train_within_memory(
        lambda part: kind.train(records, part, seed=run.params.seed, device=device),
        missing,
        keep,
        public=bool(run.params.tracking.private_metrics),
    )
    untrained = [teacher for teacher in missing if teacher not in finished]
    if kind.stacked:
        names = next(iter(finished.values()), {})
        states = {name: np.stack([finished[teacher][name] for teacher in sorted(finished)]) for name in names}
        write_tensors(path, {**states, UNTRAINED: np.array(untrained, np.int64)})
        return
    for teacher in untrained:
        write_tensors(teacher_path(run, teacher), {UNTRAINED: np.array([teacher], np.int64)})


def teacher_path(run: Run, teacher: int) -> Path:
    """Return the path of a finished teacher with its own file."""
    return _finished_folder(run) / teacher_file(teacher)


def _finished_folder(run: Run) -> Path:
    """Return the folder of finished teachers, which depends on the average that they started from."""
    if not run.params.teachers.averages:
        return teaching_folder(run)
    return teaching_folder(run) / f"from-{file_digest(run.folders.average / 'manifest.json')[:12]}"


@step("collect teachers")
def collect_teachers(run: Run) -> None:
    """Join the trained groups into one artefact that does not depend on the grouping, and clear the work folder.

    The private manifest lists untrained teachers and counts teachers without records of some class. In stacked states,
    untrained teachers are zeros.
    """
    kind = teacher_kind(run)
    teachers = voter_count(run)
    manifest: dict[str, Any] = {
        "kind": run.params.teachers.kind,
        "teachers": teachers,
        "statistics": run.params.teachers.statistics,
        "stacked": kind.stacked,
        "teachers_missing_a_class": _missing_a_class(run),
        "made_from": teachers_made_from(run),
    }
    if isinstance(kind, FinetuneKind):
        manifest["trained_percent_of_backbone"] = kind.share
    with atomic_folder(run.folders.teachers) as folder:
        if kind.stacked:
            parts = [read_tensors(_finished_folder(run) / group_name(group)) for group in groups(run)]
            untrained = np.concatenate([part.pop(UNTRAINED) for part in parts])
            write_tensors(folder / HEADS, _joined(parts, np.setdiff1d(np.arange(teachers), untrained), teachers))
        else:
            paths = [teacher_path(run, teacher) for teacher in range(teachers)]
            untrained = np.array(
                [teacher for teacher, path in enumerate(paths) if UNTRAINED in tensor_names(path)], int
            )
            for teacher, path in enumerate(paths):
                link(path, folder / teacher_file(teacher))
        files = {path.name: file_digest(path) for path in sorted(folder.iterdir())}
        about = {"untrained": untrained.tolist(), "files": files}
        write_json(folder / "manifest.json", {**manifest, **about, "digest": digest(about, 64)})
    if len(untrained) and run.params.tracking.private_metrics:  # otherwise too private for a log
        _logger.warning("%d of %d teachers had too few records to be trained.", len(untrained), teachers)
    shutil.rmtree(teaching_folder(run), ignore_errors=True)


def _joined(parts: list[Arrays], trained: np.ndarray, teachers: int) -> Arrays:
    """Return the stacked states of all teachers from those of the groups' trained teachers."""
    joined: Arrays = {}
    for name in next((list(part) for part in parts if part), []):
        values = np.concatenate([part[name] for part in parts if part])
        joined[name] = np.zeros((teachers, *values.shape[1:]), values.dtype)
        joined[name][trained] = values
    return joined


def _missing_a_class(run: Run) -> int:
    dataset = read_dataset(run.folders)
    records, classes = labelled(dataset.train_labels)
    count = count_teachers_missing_class(
        classes, read_assignment(run.folders)[records], run.params.partition.teachers, dataset.classes
    )
    if count and run.params.tracking.private_metrics:  # otherwise too private for a log
        _logger.warning("%d of %d teachers never saw a record of some class.", count, run.params.partition.teachers)
    return count
