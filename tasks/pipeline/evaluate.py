"""evaluate: measure the student on the private test split, image by image as it is served.

The figures depend on private test records, are not covered by ε, and stay private. Only an accuracy released with noise
may be published (`tasks.pipeline.figures.released_accuracy`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.artefacts.images import POOL, pool_order
from tasks.artefacts.records import read_dataset, read_pool_labels
from tasks.artefacts.released import read_student
from tasks.pipeline.figures.errors import write_errors
from tasks.pipeline.figures.party_accuracy import write_party_accuracy
from tasks.pipeline.figures.released_accuracy import release_accuracy
from tasks.pipeline.figures.subgroups import by_subgroup, load_subgroups
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import read_json, read_table, write_json
from terrine.data.dataset import Dataset
from terrine.data.ordered import Scale
from terrine.deployment.model import StudentModel
from terrine.device import resolve_device
from terrine.measures import auc, measures
from terrine.measures.order import measures_of_order
from terrine.models.statistics import has_batch_norm
from terrine.students.student import FittedStudent

NOTICE = "PRIVATE evaluation: computed on the private test split, covered by no guarantee. Do not publish."


@step("evaluate")
def evaluate_student(run: Run) -> None:
    """Write the student's figures on the test split and, with a public pool, the accuracy of the answers.

    Figures are accuracy, accuracy per class, confusion matrix and `terrine.measures`; for findings, accuracy and AUC of
    each; for ordered classes also errors. All figures are computed image by image, the default of `predict`, `serve`
    and exports. `in_batches` is the accuracy with the batch statistics of training, if predictions depend on them.
    """
    dataset = read_dataset(run.folders)
    subgroups = load_subgroups(run, dataset)
    served = StudentModel.load(run.folders.student, device=resolve_device(run.params.device))
    predicted, names = served.predict(dataset.test_images), list(dataset.class_names)
    if dataset.several:
        found = findings_figures(dataset.test_labels, predicted, names)
    else:
        units, decided = dataset.test_groups, dataset.decided(predicted)
        found = figures(dataset.test_labels, decided, names)
        found["measures"] = measures(
            dataset.test_labels, predicted, names, units, run.params.evaluation.specificity, decided
        )
        found["subgroups"] = by_subgroup(subgroups, dataset.test_labels, decided, units)
        if dataset.scale is not None:
            found["order"] = order_figures(dataset, dataset.scale, predicted, units)
    found["served"] = served.statistics
    if served.description["statistics"] != "original" and has_batch_norm(served.network):
        found["in_batches"] = {"statistics": served.description["statistics"], **figures_in_batches(run, dataset)}
    answers = answer_figures(run)
    write_json(run.folders.evaluation, found if answers is None else found | {"answers": answers})
    write_errors(run, dataset, served, predicted)
    write_party_accuracy(run, dataset, served.predict)
    release_accuracy(run, dataset)


def figures_in_batches(run: Run, dataset: Dataset) -> dict[str, Any]:
    """Return the accuracy in batches with the statistics that the student was trained with."""
    predicted = probabilities(run, dataset.test_images)
    right = dataset.decided(predicted) == dataset.test_labels
    found: dict[str, Any] = {"accuracy": float(right.mean())}
    if dataset.scale is not None:
        error = order_figures(dataset, dataset.scale, predicted, None)["mean_absolute_error"]
        found["mean_absolute_error"] = error["value"]
    return found


def probabilities(run: Run, images: np.ndarray) -> np.ndarray:
    """Return class probabilities [images, classes] in batches with the statistics of training."""
    backbone, head, manifest = read_student(run.folders)
    device = resolve_device(run.params.device)
    student = FittedStudent(backbone, head, manifest["statistics"], run.params.student.batch, device)
    return student.predict_proba(images)


def order_figures(dataset: Dataset, scale: Scale, predicted: np.ndarray, units: np.ndarray | None) -> dict[str, Any]:
    """Return `terrine.measures.order` of test-split probabilities [images, classes]."""
    labels, numbers = dataset.test_labels, dataset.test_numbers
    return measures_of_order(
        labels.astype(np.float64) if numbers is None else numbers,
        scale.numbers(predicted),
        labels,
        scale.classes(predicted),
        largest=scale.span,
        numbers=numbers is not None,
        units=units,
    )


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


def findings_figures(labels: np.ndarray, predicted: np.ndarray, names: list[str]) -> dict[str, object]:
    """Return accuracy, sensitivity, specificity and AUC of each finding, and mean accuracy and AUC.

    Args:
        labels: Findings 0 or 1, int64 [images, findings].
        predicted: Probabilities [images, findings]; a finding is predicted if its probability is above one half.
        names: Names of the findings.

    Returns:
        The figures. An AUC is None if all or no images have the finding; the mean is over the others.
    """
    yes, there = predicted > 0.5, labels == 1
    right = (yes == there).mean(axis=0)
    found = [auc(truth, scores) for truth, scores in zip(there.T, predicted.T, strict=True)]
    areas = [None if area is None else float(area.value) for area in found]
    per_class = [
        {
            "class": name,
            "count": int(there[:, number].sum()),
            "accuracy": float(right[number]),
            "sensitivity": float(yes[there[:, number], number].mean()) if there[:, number].any() else None,
            "specificity": float(1 - yes[~there[:, number], number].mean()) if not there[:, number].all() else None,
            "auc": areas[number],
        }
        for number, name in enumerate(names)
    ]
    among = [area for area in areas if area is not None]
    return {
        "notice": NOTICE,
        "images": len(labels),
        "accuracy": float(right.mean()),
        "auc": float(np.mean(among)) if among else None,
        "per_class": per_class,
        "confusion": None,
    }


def pool_truth(run: Run) -> np.ndarray | None:
    """Return the true class of each query, int64 [queries], -1 if it is synthetic; None without a pool of classes."""
    labels = read_pool_labels(run.folders)
    if labels is None or run.params.data.several:
        return None
    batches = read_json(run.folders.images / "manifest.json")["batches"]
    order = pool_order(run.params.seed, len(labels))
    truth = np.full(sum(batch["count"] for batch in batches), -1, dtype=np.int64)
    for batch in batches:
        if batch["kind"] == POOL:
            own = order[batch["source_start"] : batch["source_start"] + batch["count"]]
            truth[batch["first"] : batch["first"] + batch["count"]] = labels[own]
    return truth


def answer_figures(run: Run) -> dict[str, float | int] | None:
    """Return the number of queries from the public pool, the number answered, and the accuracy of the answers.

    A noisy histogram counts as its largest entry. The result is None without a pool or without votes. Only this
    function uses the pool's labels.
    """
    truth = pool_truth(run)
    if truth is None or run.params.aggregation.reveals == "sums":
        return None
    answers = read_table(run.folders.answers / "answers.parquet")
    answers = answers[answers["answered"]]
    counts = [name for name in answers.columns if name.startswith("count_")]
    given = answers[counts].to_numpy().argmax(axis=1) if counts else answers["label"].to_numpy()
    known = truth[answers["query"].to_numpy()]
    real = known >= 0
    right = int((given[real] == known[real]).sum())
    figures: dict[str, float | int] = {"of_pool": int((truth >= 0).sum()), "answered": int(real.sum())}
    return figures | ({"accuracy": right / int(real.sum())} if real.any() else {})
