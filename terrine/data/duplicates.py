"""Records that appear twice.

Two byte-identical images are most likely one person's, who then moves two votes, twice what the accounting pays for.
They are counted and reported, not kept together: a partition that looks for copies reads contents, so that exchanging
one record could move others. Near-duplicates (a second crop, another compression) cannot even be told from two similar
people by pixels alone: only a `group` that names the person keeps a person together.
"""

import hashlib
import math

import numpy as np


def exact_duplicates(images: np.ndarray) -> np.ndarray:
    """Return int64 [N]: for each record the index of the first record with the same pixels (its own when unique).

    `images` is any array [N, ...]; labels are not compared, since one image with two labels is still one image.
    """
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(_digest(row), i) for i, row in enumerate(_rows(images))], dtype=np.int64)


def duplicate_counts(ids: np.ndarray) -> dict[str, int]:
    """Return how many `sets` of identical records `exact_duplicates` found and how many `records` they hold."""
    _, counts = np.unique(ids, return_counts=True)
    repeated = counts[counts > 1]
    return {"sets": len(repeated), "records": int(repeated.sum())}


def shared_images(train: np.ndarray, test: np.ndarray) -> int:
    """Return how many test images [N, ...] have the pixels of a training image [M, ...]: they flatter an accuracy."""
    return int(seen_images(train, test).sum())


def seen_images(known: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return bool [N]: whether each of `images` [N, ...] has the very pixels of one of `known` [M, ...]."""
    seen = {_digest(row) for row in _rows(known)}
    return np.array([_digest(row) in seen for row in _rows(images)], dtype=bool)


def _rows(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images).reshape(len(images), math.prod(images.shape[1:]))


def _digest(row: np.ndarray) -> bytes:
    return hashlib.blake2b(row.data, digest_size=16).digest()
