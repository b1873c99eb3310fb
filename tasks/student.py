"""student: trained on synthetic images and released answers, nothing else. It reads no private path."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.features import query_features
from tasks.pretrain import read_backbone
from tasks.run import Run
from tasks.step import step
from tasks.store import (
    Folders,
    atomic_folder,
    file_digest,
    link,
    read_json,
    read_table,
    read_tensors,
    write_json,
    write_tensors,
)
from terrine.device import resolve_device
from terrine.errors import InputError
from terrine.models.backbone import Backbone
from terrine.students.linear import LinearHead, StudentSettings, fit_histograms, fit_labels


@step("student")
def train_student(run: Run) -> None:
    """Train the student on what was released, and write it with all that is needed to use it."""
    answers = read_table(run.folders.answers / "answers.parquet")
    released = read_json(run.folders.answers / "manifest.json")
    answered = answers["answered"].to_numpy()
    if not answered.any():
        raise InputError(
            "No query was answered, so there is nothing to train a student on. Lower aggregation.threshold, raise "
            "sigma or epsilon."
        )
    features = np.asarray(query_features(run, run.params.student.statistics))[answered]
    classes = len(released["class_names"])
    settings = StudentSettings(l2=run.params.student.l2, label_smoothing=run.params.student.label_smoothing)
    common: dict[str, Any] = {"seed": run.params.seed, "device": resolve_device(run.params.device)}
    if released["mechanism"] == "histogram":
        counts = answers[[f"count_{number}" for number in range(classes)]].to_numpy()[answered]
        head = fit_histograms(features, counts, released["teachers"], released["sigma"], settings, **common)
    else:
        head = fit_labels(features, answers["label"].to_numpy()[answered], classes, settings, **common)
    backbone = run.folders.backbone
    with atomic_folder(run.folders.student) as folder:
        write_tensors(folder / "head.safetensors", head.to_arrays())
        link(backbone / "backbone.safetensors", folder / "backbone.safetensors")
        write_json(
            folder / "manifest.json",
            {
                "kind": run.params.student.kind,
                "statistics": run.params.student.statistics,
                "class_names": released["class_names"],
                "size": run.params.data.size,
                "channels": run.params.data.channels,
                "digests": {name: file_digest(folder / name) for name in ("head.safetensors", "backbone.safetensors")},
            },
        )


def read_student(folders: Folders) -> tuple[Backbone, LinearHead, dict[str, Any]]:
    """Return the student's backbone, head and manifest. Raises ArtefactError if a file is missing or damaged."""
    folder = folders.student
    head = LinearHead.from_arrays(read_tensors(folder / "head.safetensors"))
    return read_backbone(folders), head, read_json(folder / "manifest.json")
