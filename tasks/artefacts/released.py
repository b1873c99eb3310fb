"""Reading of released answers, of released sums and of the student."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.artefacts.images import read_backbone
from tasks.runtime.run import Run
from tasks.runtime.store import Folders, read_json, read_table, read_tensors
from terrine.aggregation.gradient_rounds import RoundSchedule
from terrine.aggregation.mechanism import Mechanism, parse_mechanism
from terrine.aggregation.records import Whitening
from terrine.aggregation.votes import ANSWERS
from terrine.deployment.manifest import check_seal
from terrine.deployment.model import MOMENTS
from terrine.heads import FindingsHead, Head, LinearHead, head_from_arrays
from terrine.models.backbone import Backbone
from terrine.models.backbone_files import load_backbone
from terrine.models.released_statistics import set_statistics
from terrine.students.answers import ReleasedAnswers, released_answers
from terrine.students.student import TrainedStudent

SUMS = "sums.safetensors"
"""File among the answers that contains the noisy sums and the public map from features to summed vectors."""


def sums_over_records(run: Run) -> bool:
    """Return whether a run releases sums over records instead of votes of teachers."""
    return run.params.aggregation.reveals == "sums"


def load_sums_student(run: Run) -> tuple[TrainedStudent, dict[str, Any]]:
    """Return the student computed from released sums, and the release's manifest.

    If moments were released, the student has a backbone that normalises with them.
    """
    about, arrays = read_json(run.folders.answers / "manifest.json"), read_tensors(run.folders.answers / SUMS)
    whitening = Whitening(arrays["mean"], arrays["matrix"], arrays["constant"].item())
    head = make_head(whitening, RoundSchedule(**about["schedule"]).final_head(arrays), bool(about.get("findings")))
    backbone = None
    if (path := run.folders.answers / MOMENTS).is_file():
        set_statistics(backbone := read_backbone(run.folders), read_tensors(path))
    return TrainedStudent(head, backbone), about


def make_head(whitening: Whitening, weights: np.ndarray, findings: bool) -> LinearHead:
    """Return the head on features that has the given weights [length, classes] on vectors."""
    weight, bias = whitening.head(weights)
    kind = FindingsHead if findings else LinearHead
    return kind(weight.astype(np.float32), bias.astype(np.float32))


def read_answers(run: Run, votes: np.ndarray | None = None) -> tuple[np.ndarray, ReleasedAnswers, dict[str, Any]]:
    """Return the indices of the answered queries, their answers, and the release's manifest.

    Args:
        run: The run.
        votes: Histograms of votes, int64 [queries, classes], to use instead of the released answers. Private.

    Raises:
        InputError: If no query was answered.
    """
    table = read_table(run.folders.answers / "answers.parquet")
    released = read_json(run.folders.answers / "manifest.json")
    classes, labels, counts = len(released["class_names"]), table["label"].to_numpy(), votes
    mechanism = parse_mechanism(released)
    assert isinstance(mechanism, Mechanism)
    if votes is not None:
        labels = votes.argmax(axis=1)
    elif mechanism.reveals == "histogram":
        each = len(ANSWERS) if mechanism.findings > 1 else classes
        counts = table[[f"count_{number}" for number in range(each)]].to_numpy()
    rows, answers = released_answers(
        mechanism,
        run.params.student,
        answered=table["answered"].to_numpy(),
        labels=labels,
        histograms=counts,
        teachers=released["teachers"],
        classes=classes,
        ordered=run.params.data.scale is not None and run.params.student.kind == "linear",
    )
    return rows, answers, released


def read_student(folders: Folders) -> tuple[Backbone, Head, dict[str, Any]]:
    """Return the student's backbone, head and manifest.

    Raises:
        ArtefactError: If a file is missing, damaged or changed.
    """
    folder = folders.student
    manifest = check_seal(folder)
    return (
        load_backbone(folder / "backbone.safetensors"),
        head_from_arrays(read_tensors(folder / "head.safetensors")),
        manifest,
    )
