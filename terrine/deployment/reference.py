"""Selection of reference images: synthetic images stored with a student, for the statistics of small batches.

The images of which the student is most certain, each class in turn, resemble real images most (figures in
docs/serving.md). The student is public, so selecting by it is post-processing. A student contains no real image.
"""

import numpy as np

from terrine.errors import InputError
from terrine.geometry import Size, pixels

COUNT = 64
"""Number of reference images stored with a student."""

_MOST_BYTES = 2**24


def choose_reference(probabilities: np.ndarray, count: int = COUNT) -> np.ndarray:
    """Return the indices, int64 [min(count, N)], of reference images among N candidates.

    Classes take turns, each giving its most certain remaining candidate, so every prefix of the list is balanced.

    Args:
        probabilities: The student's class probabilities, float [N, classes].
        count: Number of images.

    Raises:
        InputError: Fewer than two candidate images were given.
    """
    if probabilities.ndim != 2 or len(probabilities) < 2:
        raise InputError(
            f"Reference images are chosen by probabilities [images, classes] of at least 2 images, not by an array of "
            f"shape {probabilities.shape}."
        )
    labels = probabilities.argmax(axis=1)
    certainty = probabilities.max(axis=1)
    order = np.lexsort((np.arange(len(labels)), -certainty))
    rank = np.empty(len(labels), dtype=np.int64)  # rank of each candidate within its class
    for number in range(probabilities.shape[1]):
        own = order[labels[order] == number]
        rank[own] = np.arange(len(own))
    return np.lexsort((labels, rank))[:count].astype(np.int64)


def affordable(size: Size, channels: int, count: int = COUNT) -> int:
    """Return the number of reference images of this geometry to store: `count`, or fewer if they are large."""
    return max(16, min(count, _MOST_BYTES // (channels * pixels(size))))
