"""Votes and histograms, checked where they enter.

Votes are whole numbers [queries, teachers]: the class each teacher chose. Histograms are int64 [queries, classes]: how
many teachers chose each class, so every row sums to the number of teachers. Both are arrays of small whole numbers,
and an accountant that takes one for the other under-reports ε without any sign; so each is refused in the other's
place.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.errors import InputError

IntegerArray = NDArray[np.integer]
HistogramArray = NDArray[np.int64]

# Votes counted at a time: as int64 positions they stay within a core's second-level cache.
_VOTES_PER_CHUNK = 65_536


def validate_votes(votes: ArrayLike, classes: int) -> IntegerArray:
    """`votes` as an array, once it is known to hold what each teacher chose for each query.

    Args:
        votes: Whole numbers [queries, teachers] in [0, classes).
        classes: Number of classes, at least 2.

    Raises:
        InputError: another shape or type, no teacher, or a vote out of range; the message says where.
    """
    array = np.asarray(votes)
    if classes < 2:
        raise InputError(f"A vote needs at least 2 classes to choose from, got {classes}.")
    if array.ndim != 2 or array.shape[1] == 0:
        raise InputError(
            f"Votes have the shape [queries, teachers] with at least one teacher, got {list(array.shape)}. "
            "Labels, one per query, are not votes."
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"Votes are whole numbers, got {array.dtype}: store the class each teacher chose, not scores.")
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= classes:
            worst = low if low < 0 else high
            query, teacher = np.argwhere(array == worst)[0].tolist()
            raise InputError(
                f"Teacher {teacher} voted {worst} on query {query}, but there are {classes} classes, 0 to "
                f"{classes - 1}: vote again, or correct the number of classes."
            )
    return array


def histograms_of(votes: ArrayLike, classes: int) -> HistogramArray:
    """How many teachers chose each class, per query.

    Args:
        votes: Whole numbers [queries, teachers] in [0, classes).
        classes: Number of classes, at least 2.

    Returns:
        int64 [queries, classes], rows summing to the number of teachers.

    Raises:
        InputError: see `validate_votes`.
    """
    array = validate_votes(votes, classes)
    queries, teachers = array.shape
    histograms = np.empty((queries, classes), dtype=np.int64)
    rows = max(1, _VOTES_PER_CHUNK // teachers)
    offsets = np.arange(rows, dtype=np.int64)[:, None] * classes
    for start in range(0, queries, rows):
        chunk = array[start : start + rows]
        positions = offsets[: len(chunk)] + chunk
        counts = np.bincount(positions.ravel(), minlength=len(chunk) * classes)
        histograms[start : start + rows] = counts.reshape(-1, classes)
    return histograms


def validate_histograms(histograms: ArrayLike, teachers: int | None = None) -> HistogramArray:
    """`histograms` as int64, once it is known to hold counts of votes.

    Args:
        histograms: Whole numbers ≥ 0 [queries, classes].
        teachers: What every row must sum to; without it, what the first row sums to.

    Raises:
        InputError: another shape or type, a negative count, or a row with another sum; the message says where.
    """
    array = np.asarray(histograms)
    if array.ndim != 2 or array.shape[1] < 2:
        raise InputError(
            f"Histograms have the shape [queries, classes] with at least 2 classes, got {list(array.shape)}. Labels, "
            "one per query, are not histograms: pass the votes through histograms_of."
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"Histograms are counts of votes, whole numbers, got {array.dtype}: pass them without noise.")
    if array.size and int(array.min()) < 0:
        query, label = np.argwhere(array < 0)[0].tolist()
        raise InputError(f"The histogram of query {query} counts {array[query, label]} votes for class {label}.")
    counts = array.astype(np.int64, copy=False)
    sums = counts.sum(axis=1)
    expected = teachers if teachers is not None else int(sums[0]) if sums.size else 0
    wrong = np.flatnonzero(sums != expected)
    if wrong.size or (sums.size and expected < 1):
        query = int(wrong[0]) if wrong.size else 0
        raise InputError(
            f"The histogram of query {query} sums to {int(sums[query])}, but every teacher votes once on every query, "
            f"which makes {max(expected, 1)}. Labels or votes [queries, teachers] are not histograms: pass votes "
            "through histograms_of."
        )
    return counts
