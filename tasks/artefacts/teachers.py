"""Inputs, training data, states and votes of a run's teachers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.averages import AVERAGE, OWN, averages_cost, read_average_manifest
from tasks.artefacts.images import read_backbone
from tasks.artefacts.records import read_assignment, read_dataset
from tasks.config.values import digest
from tasks.runtime.releases import inputs_cost
from tasks.runtime.run import Run
from tasks.runtime.store import Folders, read_array, read_json, read_tensors
from terrine.aggregation.votes import Findings
from terrine.data.dataset import Dataset
from terrine.errors import ArtefactError
from terrine.files import file_digest
from terrine.privacy.accounting.events import Event, compose
from terrine.teachers.averaging.averaged import RoundState
from terrine.teachers.averaging.ttac import Average
from terrine.teachers.base import TeacherContext, TeacherKind
from terrine.teachers.records import Arrays, PrivateFeatures, Records

HEADS = "heads.safetensors"
FEATURES, ABOUT_FEATURES = "features.npy", "features.json"
"""Features of the records and a description that includes their partition; both files are needed."""


def teacher_inputs(run: Run) -> dict[str, Any]:
    """Return all inputs of the teachers' training as JSON values."""
    return {
        "dataset": run.folders.dataset_manifest()["fingerprint"],
        "partition": read_json(run.folders.partition / "manifest.json")["hash"],
        "backbone": file_digest(run.folders.backbone / "backbone.safetensors"),
        "teachers": run.params.teachers.model_dump(mode="json", exclude={"per_task"}),
        "seed": run.params.seed,
    }


def teachers_made_from(run: Run) -> str:
    """Return the digest of the teachers' inputs, including the average that they start from."""
    average = {"average": file_digest(run.folders.average / "manifest.json")} if run.params.teachers.averages else {}
    return digest({**teacher_inputs(run), **average}, 64)


def teaching_folder(run: Run) -> Path:
    """Return the folder of intermediate results for exactly these inputs."""
    return run.folders.work / f"teach-{digest(teacher_inputs(run))}"


def voter_count(run: Run) -> int:
    """Return the number of voting models: one per part of the data or per block of parts."""
    return run.params.teachers.voters(run.params.partition.teachers)


def teacher_kind(run: Run) -> TeacherKind:
    """Return the run's kind of teacher with its settings."""
    return run.params.teachers.build(teacher_context(run))


def teacher_context(run: Run) -> TeacherContext:
    """Return the context of the run's teachers."""
    return TeacherContext(
        classes=len(run.folders.dataset_manifest()["class_names"]),
        channels=run.params.data.channels,
        size=run.params.data.size,
        backbone=lambda: read_backbone(run.folders),
        seed=run.params.seed,
        parties=run.params.partition.teachers,
        start=lambda: read_start(run.folders),
        by_teacher=run.params.backbone.kind != "columns",
        findings=make_findings(run),
    )


def make_findings(run: Run) -> Findings | None:
    """Return the number of findings and the limit on how many a teacher may name, or None for classes."""
    settings = run.params.aggregation
    return Findings(settings.findings, settings.findings_bound) if run.params.data.several else None


def read_start(folders: Folders) -> RoundState:
    """Return the start of the last round. Raises ArtefactError if a file is missing or was changed."""
    manifest = read_average_manifest(folders)
    for name in (AVERAGE, OWN):
        path = folders.average / name
        if not path.is_file() or file_digest(path) != manifest["files"].get(name):
            raise ArtefactError(f"{path} is missing or was changed. Run the stage 'average' again.")
    arrays = read_tensors(folders.average / AVERAGE)
    own = read_array(folders.average / OWN, memory_map=True)
    return RoundState(Average(arrays["value"], arrays["control"]), own, arrays.get("centre"))


def load_records(run: Run, inputs: str) -> Records:
    """Return the teachers' training data: records' `features` or `images`, with augmented copies if there are any."""
    dataset = read_dataset(run.folders)
    labels, assignment = dataset.train_labels, read_assignment(run.folders)
    if inputs == "features":
        labels, assignment = (run.params.teachers.repeat_for_copies(values) for values in (labels, assignment))
    return Records(record_inputs(run, inputs, dataset), labels, assignment, dataset.classes)


def record_inputs(run: Run, inputs: str, dataset: Dataset) -> np.ndarray | PrivateFeatures:
    """Map the teachers' inputs: `images` or rows as stored, or `features`."""
    if inputs == "images":
        return dataset.train_images
    if dataset.column_names is not None:
        return PrivateFeatures.of_rows(dataset.train_images)
    rows = read_array(teaching_folder(run) / FEATURES, memory_map=True)
    return PrivateFeatures(rows, **read_json(teaching_folder(run) / ABOUT_FEATURES))


def group_name(teachers: range) -> str:
    """Return the file name of a group of teachers."""
    return f"group-{teachers.start:06d}-{teachers.stop:06d}.safetensors"


def teacher_file(teacher: int) -> str:
    """Return the file name of a teacher that has its own file."""
    return f"teacher-{teacher:06d}.safetensors"


def read_teachers_manifest(folders: Folders) -> dict[str, Any]:
    """Return the teachers' manifest."""
    return read_json(folders.teachers / "manifest.json")


def read_states(folders: Folders, teachers: Iterable[int]) -> Iterator[Arrays]:
    """Yield the states of teachers, read one at a time; for untrained ones see `collect_teachers`.

    Raises:
        ArtefactError: If a file is missing or was changed.
    """
    manifest = read_teachers_manifest(folders)
    if manifest["stacked"]:
        arrays = _read_checked(folders, manifest, HEADS)
        for teacher in teachers:
            yield {name: array[teacher] for name, array in arrays.items()}
        return
    for teacher in teachers:
        yield _read_checked(folders, manifest, teacher_file(teacher))


def _read_checked(folders: Folders, manifest: dict[str, Any], name: str) -> Arrays:
    path = folders.teachers / name
    if not path.is_file() or file_digest(path) != manifest["files"].get(name):
        raise ArtefactError(f"{path} is missing or was changed. Run the stage 'teach' again.")
    return read_tensors(path)


def votes_made_from(run: Run) -> str:
    """Return the digest of the inputs of the votes: teachers, backbone, queries and statistics."""
    folders = run.folders
    return digest(
        {
            "teachers": read_teachers_manifest(folders)["digest"],
            "backbone": file_digest(folders.backbone / "backbone.safetensors"),
            "queries": file_digest(folders.images / "manifest.json"),
            "statistics": run.params.teachers.statistics,
            **({"findings": make_findings(run)} if run.params.data.several else {}),
        }
    )


def read_votes(folders: Folders) -> np.ndarray:
    """Return the votes, unsigned integers [queries, teachers]."""
    return read_array(folders.votes / "votes.npy")


def cost_before_votes(run: Run) -> Event:
    """Return the cost of releases before the votes: the count of units, moments and averages.

    Averages without noise have no cost; the release is then marked as unprotected.
    """
    if run.params.teachers.unprotected:
        return compose()
    return compose(inputs_cost(run.params), averages_cost(run))
