"""Label distributions of the teachers in a partition. Counts of records, hence private."""

from typing import Any

import numpy as np

from terrine.errors import InputError


def label_histograms(assignment: np.ndarray, labels: np.ndarray, teachers: int, classes: int) -> np.ndarray:
    """Return the number of records of each class for each teacher, int64 [teachers, classes].

    Args:
        assignment: Teacher of each record, int64 [records].
        labels: Class of each record, int64 [records].
        teachers: Number of teachers.
        classes: Number of classes.

    Raises:
        InputError: the arrays differ in length.
    """
    if assignment.shape != labels.shape:
        raise InputError(f"The partition has shape {list(assignment.shape)}, the labels have {list(labels.shape)}.")
    cells = np.bincount(assignment * classes + labels, minlength=teachers * classes)
    histograms: np.ndarray = cells.reshape(teachers, classes).astype(np.int64)
    return histograms


def row_shares(histograms: np.ndarray) -> np.ndarray:
    """Return each count as a share of its row, float64 of the same shape; zero for an empty row."""
    return histograms / np.maximum(histograms.sum(axis=1, keepdims=True), 1)


def label_distances(histograms: np.ndarray) -> np.ndarray:
    """Return the total variation distance between each teacher's labels and all labels, float64 [teachers].

    The value is 0 for a teacher without records.
    """
    whole = histograms.sum(axis=0) / max(int(histograms.sum()), 1)
    distances: np.ndarray = 0.5 * np.abs(row_shares(histograms) - whole).sum(axis=1)
    distances[histograms.sum(axis=1) == 0] = 0.0
    return distances


def summarise(histograms: np.ndarray, sizes: np.ndarray | None = None) -> dict[str, Any]:
    """Return a JSON-able summary: records and classes per teacher, and distances of teachers with records.

    Args:
        histograms: Number of records by teacher and class, int64 [teachers, classes].
        sizes: Number of records of each teacher, if a record may have several findings or none.
    """
    sizes, seen = histograms.sum(axis=1) if sizes is None else sizes, (histograms > 0).sum(axis=1)
    distances = label_distances(histograms)[sizes > 0]
    spreads = {
        name: {"smallest": int(values.min()), "median": float(np.median(values)), "largest": int(values.max())}
        for name, values in (("records_per_teacher", sizes), ("classes_per_teacher", seen))
    }
    return {
        **spreads,
        "teachers_without_some_class": int((seen < histograms.shape[1]).sum()),
        "label_distance": {"mean": float(distances.mean()), "largest": float(distances.max())},
    }
