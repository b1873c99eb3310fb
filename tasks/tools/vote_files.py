"""Read and check files of votes [queries, teachers] or histograms [queries, classes].

Both are arrays of integers, and mistaking labels for counts would give a smaller ε. The caller therefore declares the
content of a file, and this module checks it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine import npy
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.data_dependent import check_histograms

_LARGEST_HISTOGRAMS = 200_000_000


def read_histograms(
    path: Path,
    *,
    histograms: bool = False,
    teachers_first: bool = False,
    classes: int | None = None,
    teachers: int | None = None,
    queries: int | None = None,
) -> NDArray[np.int64]:
    """Return the histograms [queries, classes] of an npy file of votes [queries, teachers].

    Args:
        path: The file.
        histograms: Whether it contains histograms.
        teachers_first: Whether it contains votes [teachers, queries].
        classes: Number of classes; None: largest vote plus one.
        teachers: Expected number of teachers.
        queries: Number of queries to return; None: all.

    Raises:
        InputError: the array's content or shape differs from the declared one.
        SettingError: the options contradict each other.
    """
    array = npy.read(path)
    if histograms and teachers_first:
        raise SettingError("Histograms have no axis of teachers: --teachers-first is for votes.")
    if array.ndim != 2 or min(array.shape) < 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{path} is {array.dtype} {array.shape}, but votes are integers [queries, teachers] and histograms "
            "integers [queries, classes]. Labels, one per query, do not suffice."
        )
    if histograms:
        counts = check_histograms(array)
        if classes is not None and counts.shape[1] != classes:
            raise InputError(f"{path} contains histograms over {counts.shape[1]} classes, not {classes}.")
    else:
        counts = _count(array.T if teachers_first else array, classes, path)
    if teachers is not None and counts[0].sum() != teachers:
        raise InputError(f"{path} contains the votes of {counts[0].sum()} teachers, not {teachers}.")
    if queries is not None and not 1 <= queries <= len(counts):
        raise InputError(f"{path} contains {len(counts)} queries, not {queries} or more.")
    return counts[:queries]


def read_answered(path: Path, queries: int) -> NDArray[np.bool_]:
    """Return whether each of the first `queries` queries was answered, from booleans or released labels with −1.

    Raises:
        InputError: the array has another type, or fewer entries than queries.
    """
    array = npy.read(path)
    if array.ndim != 1 or len(array) < queries or array.dtype.kind not in "biu":
        raise InputError(
            f"{path} must contain one boolean (or released label, −1 if unanswered) for each of {queries} queries, got "
            f"{array.dtype} of shape {array.shape}."
        )
    if array.dtype.kind != "b" and not np.any((array < 0) | (array > 1)):
        raise InputError(f"{path} contains 0 and 1 as {array.dtype}, which may be labels. Store flags as booleans.")
    answered = array if array.dtype.kind == "b" else array >= 0
    return np.asarray(answered[:queries], dtype=np.bool_)


def _count(votes: NDArray[Any], classes: int | None, path: Path) -> NDArray[np.int64]:
    """Return the histograms of votes [queries, teachers]."""
    queries, teachers = votes.shape
    if teachers < 2:
        raise InputError(f"{path} has one vote per query, so it contains labels instead of votes.")
    lowest, highest = int(votes.min()), int(votes.max())
    width = max(2, highest + 1) if classes is None else classes
    if lowest < 0 or highest >= width:
        raise InputError(f"{path} contains votes from {lowest} to {highest}, but classes are numbered 0..{width - 1}.")
    totals = votes.sum(axis=1, dtype=np.int64)
    if highest >= teachers and totals.min() == totals.max() and (queries > 1 or classes is None):
        raise InputError(f"{path} looks like histograms (every row sums to {totals[0]}), not votes: use --histograms.")
    if queries * width > _LARGEST_HISTOGRAMS:
        raise InputError(f"{path} contains votes up to {highest}, which cannot be class indices.")
    flat = votes.astype(np.int64) + np.arange(queries)[:, None] * width
    counts = np.bincount(flat.ravel(), minlength=queries * width).reshape(queries, width)
    return check_histograms(counts)
