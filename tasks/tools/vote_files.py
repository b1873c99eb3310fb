"""Files with votes that people bring: [queries, teachers] votes or [queries, classes] histograms, checked at the door.

An accountant that is fed labels where counts belong under-reports, and both are arrays of integers. So what a file
holds is said by the caller and verified here.
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
    """Return the histograms of votes [queries, classes] in an npy file of votes [queries, teachers].

    histograms, teachers_first: the file holds histograms, or votes [teachers, queries]. classes: by default that of the
    largest vote. teachers: to check for. queries: take the first so many.

    Raises InputError for no such array, labels where votes or histograms belong, one in the place of the other, classes
    or teachers that do not fit; SettingError for options that exclude each other.
    """
    array = npy.read(path)
    if histograms and teachers_first:
        raise SettingError("Histograms have no teachers' axis: --teachers-first is for votes.")
    if array.dtype.kind not in "iu":
        raise InputError(f"{path} holds {array.dtype}, but votes and histograms are integers.")
    if array.ndim != 2 or min(array.shape) < 1:
        raise InputError(
            f"{path} has shape {array.shape}, but votes are [queries, teachers] and histograms [queries, classes]: "
            "labels, one per query, say nothing about the votes behind them."
        )
    if histograms:
        counts = check_histograms(array)
        if classes is not None and counts.shape[1] != classes:
            raise InputError(f"{path} holds histograms over {counts.shape[1]} classes, not {classes}.")
    else:
        counts = _count(array.T if teachers_first else array, classes, path)
    if teachers is not None and counts[0].sum() != teachers:
        raise InputError(f"{path} holds the votes of {counts[0].sum()} teachers, not {teachers}.")
    if queries is None:
        return counts
    if not 1 <= queries <= len(counts):
        raise InputError(f"{path} holds {len(counts)} queries: the first {queries} cannot be taken.")
    return counts[:queries]


def read_answered(path: Path, queries: int) -> NDArray[np.bool_]:
    """Return which of the first `queries` queries were answered: a boolean array, or released labels with −1.

    Raises InputError for another kind of array, or fewer entries than queries.
    """
    array = npy.read(path)
    if array.ndim != 1 or len(array) < queries or array.dtype.kind not in "biu":
        raise InputError(
            f"{path} must hold one boolean (or released label, −1 where unanswered) for each of {queries} queries, "
            f"got {array.dtype} of shape {array.shape}."
        )
    if array.dtype.kind != "b" and not np.any((array < 0) | (array > 1)):
        raise InputError(f"{path} holds 0 and 1 as {array.dtype}, labels or flags alike: store flags as booleans.")
    answered = array if array.dtype.kind == "b" else array >= 0
    return np.asarray(answered[:queries], dtype=np.bool_)


def _count(votes: NDArray[Any], classes: int | None, path: Path) -> NDArray[np.int64]:
    """Histograms of votes [queries, teachers]."""
    queries, teachers = votes.shape
    if teachers < 2:
        raise InputError(f"{path} has one vote per query: these are labels, and say nothing about the votes behind.")
    lowest, highest = int(votes.min()), int(votes.max())
    if lowest < 0:
        raise InputError(f"Votes are class indices from 0 on, but {path} holds {lowest}.")
    width = max(2, highest + 1) if classes is None else classes
    if highest >= width:
        raise InputError(f"{path} holds a vote for class {highest}, but there are {width} classes.")
    totals = votes.sum(axis=1, dtype=np.int64)
    if highest >= teachers and totals.min() == totals.max() and (queries > 1 or classes is None):
        raise InputError(f"{path} looks like histograms (every row sums to {totals[0]}), not votes: say --histograms.")
    if queries * width > _LARGEST_HISTOGRAMS:
        raise InputError(f"{path} holds votes up to {highest}: these cannot be class indices.")
    flat = votes.astype(np.int64) + np.arange(queries)[:, None] * width
    counts = np.bincount(flat.ravel(), minlength=queries * width).reshape(queries, width)
    return check_histograms(counts)
