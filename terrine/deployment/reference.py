"""The reference images: synthetic images that are stored with a student and lend small batches their statistics.

They are synthetic: a student contains no real image. Which ones matters: those of which the student is most certain,
every class in turn, look most like what it was made for (docs/serving.md has the figures). The student is public, so
choosing by it is free.
"""

import numpy as np

from terrine.errors import InputError
from terrine.geometry import Size, pixels

COUNT = 64
"""Reference images that are stored with a student."""

_MOST_BYTES = 2**24


def choose_reference(probabilities: np.ndarray, count: int = COUNT) -> np.ndarray:
    """Return the indices, int64 [min(count, N)], of reference images among N candidates.

    probabilities: the student's, float [N, classes]. Classes take turns, each giving the candidate it is most certain
    of; one that has run out of candidates is passed over. So every beginning of the list is as balanced as it can be,
    and the result does not depend on the order of equals elsewhere. Raises InputError for fewer than two candidates.
    """
    if probabilities.ndim != 2 or len(probabilities) < 2:
        raise InputError(
            f"Reference images are chosen by probabilities [images, classes] of at least 2 images, not by an array of "
            f"shape {probabilities.shape}."
        )
    labels = probabilities.argmax(axis=1)
    certainty = probabilities.max(axis=1)
    order = np.lexsort((np.arange(len(labels)), -certainty))
    rank = np.empty(len(labels), dtype=np.int64)  # of each candidate within its class
    for number in range(probabilities.shape[1]):
        own = order[labels[order] == number]
        rank[own] = np.arange(len(own))
    return np.lexsort((labels, rank))[:count].astype(np.int64)


def affordable(size: Size, channels: int, count: int = COUNT) -> int:
    """Return how many reference images of this geometry to store: `count`, fewer where they would be many megabytes."""
    return max(16, min(count, _MOST_BYTES // (channels * pixels(size))))
