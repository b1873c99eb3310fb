"""evaluate: how well the student does on the private test split.

The figures are functions of private test records and are not covered by ε: they stay private, and are marked wherever
they appear. The one that may be published has noise and a price (`tasks.pipeline.released_accuracy`).
"""

from __future__ import annotations

import numpy as np

from tasks.pipeline.answer_accuracy import answer_figures
from tasks.pipeline.dataset import read_dataset
from tasks.pipeline.party_accuracy import write_party_accuracy
from tasks.pipeline.released_accuracy import release_accuracy
from tasks.pipeline.student import read_student
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import read_json, write_json
from terrine.deployment.manifest import MANIFEST
from terrine.deployment.model import StudentModel
from terrine.device import resolve_device
from terrine.students.fitted import FittedStudent

NOTICE = "PRIVATE evaluation: computed on the private test split, covered by no guarantee. Do not publish."


@step("evaluate")
def evaluate_student(run: Run) -> None:
    """Write accuracy, accuracy per class and the confusion matrix on the test split; of a public pool, its answers'.

    `accuracy` is that of the student in batches, with the statistics it was trained with; `served` that of what
    `terrine predict` and `serve` answer with unless told otherwise, one image at a time, where this is another.
    """
    dataset = read_dataset(run.folders)
    predictions = probabilities(run, dataset.test_images).argmax(axis=1)
    found = figures(dataset.test_labels, predictions, list(dataset.class_names))
    served = StudentModel.load(run.folders.student, device=resolve_device(run.params.device))
    own = read_json(run.folders.student / MANIFEST)["statistics"]
    if served.statistics != own:
        right = served.predict(dataset.test_images).argmax(axis=1) == dataset.test_labels
        found["served"] = {"statistics": served.statistics, "accuracy": float(right.mean())}
    answers = answer_figures(run)
    # Where earlier versions wrote these very figures, and nobody would look for them any more.
    (run.folders.release / run.folders.evaluation.name).unlink(missing_ok=True)
    write_json(run.folders.evaluation, found if answers is None else found | {"answers": answers})
    write_party_accuracy(run, dataset, lambda images: probabilities(run, images))
    release_accuracy(run, dataset)


def probabilities(run: Run, images: np.ndarray) -> np.ndarray:
    """Return the student's class probabilities [images, classes], in batches as a deployment would see them."""
    backbone, head, manifest = read_student(run.folders)
    device = resolve_device(run.params.device)
    student = FittedStudent(backbone, head, manifest["statistics"], run.params.student.batch, device)
    return student.predict_proba(images)


def figures(labels: np.ndarray, predictions: np.ndarray, class_names: list[str]) -> dict[str, object]:
    """Return accuracy, per-class accuracy and the confusion matrix [true class, predicted class]."""
    classes = len(class_names)
    confusion = np.bincount(labels * classes + predictions, minlength=classes * classes).reshape(classes, classes)
    counts = confusion.sum(axis=1)
    right = confusion.diagonal()
    return {
        "notice": NOTICE,
        "images": len(labels),
        "accuracy": float(right.sum() / len(labels)),
        "per_class": [
            {
                "class": class_names[number],
                "count": int(counts[number]),
                "accuracy": float(right[number] / counts[number]) if counts[number] else None,
            }
            for number in range(classes)
        ],
        "confusion": confusion.tolist(),
    }
