"""Accuracy of the same student without noise, and test images that the student gets wrong: for the private report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.features import query_features
from tasks.artefacts.images import read_backbone, read_queries
from tasks.artefacts.released import read_answers, sums_over_records
from tasks.reports.charts import png_data_uri
from tasks.runtime.run import Run
from tasks.runtime.store import Folders, read_array, read_json, read_tensors, write_json
from terrine.data.dataset import Dataset
from terrine.deployment.model import StudentModel
from terrine.device import resolve_device
from terrine.heads import Head, head_from_arrays
from terrine.students.student import StudentData

NOTICE = "PRIVATE: computed from exact votes or sums and from test records, covered by no guarantee. Do not publish."
FILE = "errors.json"
LARGEST = 2000
"""Maximum number of test records on which the student without noise is evaluated."""
IMAGES = 12
LONGEST = 112
"""Largest width and height of a misclassified image in the report, in pixels."""
QUICK = ("linear", "forest")
"""Kinds of students whose training takes seconds."""


def exact_head_file(folders: Folders, release_id: str) -> Path:
    """Return the file with the head that the exact sums of a release give. Private."""
    return folders.accounting / f"exact-head-{release_id[:16]}.safetensors"


def write_errors(run: Run, dataset: Dataset, served: StudentModel, predicted: np.ndarray) -> None:
    """Write the accuracy without noise and some misclassified test images to data/private.

    Args:
        run: The run.
        dataset: Its data.
        served: Its student.
        predicted: The student's probabilities on the test split, [images, classes].
    """
    if run.params.transcription is not None:  # a transcription's report does not show them
        return
    found: dict[str, Any] = {"notice": NOTICE, "without_noise": None, "wrong": []}
    if (head := _head_without_noise(run)) is not None:
        count = len(dataset.test_labels)
        rows = np.linspace(0, count - 1, min(LARGEST, count)).round().astype(np.int64)
        exact = served.with_head(head).predict(dataset.test_images[rows])
        right = {"accuracy": _right(dataset, exact, rows), "with_noise": _right(dataset, predicted[rows], rows)}
        found["without_noise"] = {name: float(each.mean()) for name, each in right.items()} | {"images": len(rows)}
    if run.params.data.of_images and not dataset.several:
        decided = dataset.decided(predicted)
        wrong = np.flatnonzero(decided != dataset.test_labels)
        for number in wrong[np.linspace(0, len(wrong) - 1, min(IMAGES, len(wrong))).round().astype(np.int64)]:
            image, names = dataset.test_images[number], dataset.class_names
            found["wrong"].append(
                {
                    "image": png_data_uri(image[0] if len(image) == 1 else image.transpose(1, 2, 0), LONGEST),
                    "true": names[dataset.test_labels[number]],
                    "predicted": names[decided[number]],
                }
            )
    write_json(run.folders.private / FILE, found)


def _right(dataset: Dataset, predicted: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return which predictions are right: bool [rows], or [rows, findings]."""
    labels = dataset.test_labels[rows]
    return np.asarray((predicted > 0.5) == (labels == 1) if dataset.several else dataset.decided(predicted) == labels)


def _head_without_noise(run: Run) -> Head | None:
    """Return the head from exact votes or sums, or None if they are not stored or training takes minutes."""
    settings, sums = run.params.student, sums_over_records(run)
    if not (manifest := run.folders.answers / "manifest.json").is_file():  # a party that evaluates
        return None
    released = read_json(manifest)
    votes_file = run.folders.accounting / "histograms.npy"
    path = exact_head_file(run.folders, released["release_id"]) if sums else votes_file
    if not path.is_file() or not (sums or settings.kind in QUICK):
        return None
    if sums:
        return head_from_arrays(read_tensors(path))
    rows, answers, _ = read_answers(run, read_array(path))
    data = StudentData(
        read_queries(run.folders),
        rows,
        answers,
        read_backbone(run.folders),
        settings.statistics,
        lambda _, compute: query_features(run, settings.statistics),
    )
    return settings.train(data, seed=run.params.seed, device=resolve_device(run.params.device)).head
