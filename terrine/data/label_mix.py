"""What labels each teacher has: how far the parts of a partition differ. Counts of records, hence private."""

from typing import Any

import numpy as np

from terrine.errors import InputError


def label_histograms(assignment: np.ndarray, labels: np.ndarray, teachers: int, classes: int) -> np.ndarray:
    """Return int64 [teachers, classes]: how many records of each class each teacher has.

    `assignment` and `labels` are int64 [records], in 0..teachers-1 and 0..classes-1. Raises InputError when their
    lengths differ.
    """
    if assignment.shape != labels.shape:
        raise InputError(f"The partition has shape {list(assignment.shape)}, the labels have {list(labels.shape)}.")
    cells = np.bincount(assignment * classes + labels, minlength=teachers * classes)
    histograms: np.ndarray = cells.reshape(teachers, classes).astype(np.int64)
    return histograms


def row_shares(histograms: np.ndarray) -> np.ndarray:
    """Return float64 [teachers, classes]: which share of a teacher's records is of each class.

    Rows sum to one, that of a teacher without records to zero. The same of any counts, such as a confusion matrix.
    """
    return histograms / np.maximum(histograms.sum(axis=1, keepdims=True), 1)


def label_distances(histograms: np.ndarray) -> np.ndarray:
    """Return float64 [teachers]: total variation distance between a teacher's labels and those of all records.

    0 for the mix of the whole, and for a teacher without records; near 1 for one who has what hardly any other has.
    """
    whole = histograms.sum(axis=0) / max(int(histograms.sum()), 1)
    distances: np.ndarray = 0.5 * np.abs(row_shares(histograms) - whole).sum(axis=1)
    distances[histograms.sum(axis=1) == 0] = 0.0
    return distances


def distance_by_chance(histograms: np.ndarray) -> float:
    """Return the mean distance that parts of these sizes would have, were their records dealt at random.

    A small part differs from the whole by chance alone: E|share − p| = √(2 v / π) in the normal approximation, where
    v = p (1 − p) / n · (N − n) / (N − 1) is the variance for n of N records. Teachers without records are left out.
    """
    sizes = histograms.sum(axis=1)
    sizes = sizes[sizes > 0]
    whole = histograms.sum(axis=0) / max(int(histograms.sum()), 1)
    per_root = 0.5 * np.sqrt(2 * whole * (1 - whole) / np.pi).sum()
    total = int(sizes.sum())
    spread = np.sqrt((total - sizes) / (sizes * max(total - 1, 1)))
    return float((per_root * spread).mean()) if len(sizes) else 0.0


def summarise(histograms: np.ndarray, sizes: np.ndarray | None = None) -> dict[str, Any]:
    """Return a JSON-able summary: records and classes per teacher, teachers without some class, distances.

    The mean distance, like the one by chance, is that of teachers who have records. sizes: int64 [teachers], records
    of each, where a record may have several findings or none.
    """
    sizes, seen = histograms.sum(axis=1) if sizes is None else sizes, (histograms > 0).sum(axis=1)
    distances = label_distances(histograms)[sizes > 0]
    return {
        "records_per_teacher": _spread(sizes),
        "classes_per_teacher": _spread(seen),
        "teachers_without_some_class": int((seen < histograms.shape[1]).sum()),
        "label_distance": {
            "mean": float(distances.mean()),
            "largest": float(distances.max()),
            "mean_by_chance": distance_by_chance(histograms),
        },
    }


def _spread(values: np.ndarray) -> dict[str, float]:
    return {"smallest": int(values.min()), "median": float(np.median(values)), "largest": int(values.max())}
