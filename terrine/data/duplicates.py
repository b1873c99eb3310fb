"""Records that appear twice.

Two byte-identical images are most likely one person's. In two parts of a partition they would let that person move two
votes, twice what the accounting pays for, so a partition keeps them together (see `terrine.data.partition`).
Near-duplicates (a second crop, another compression) cannot be told from two similar people by pixels alone: only a
`group` column that names the person does.
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


def merge_groups(groups: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return int64 [N]: the finest grouping in which records of one group, or with one duplicate id, are together.

    When two groups share an image they become one, transitively. Values are 0..G-1 in order of first appearance.
    """
    from scipy.sparse import coo_array  # half a second, for the few that protect groups
    from scipy.sparse.csgraph import connected_components

    _, group = np.unique(groups, return_inverse=True)
    _, duplicate = np.unique(ids, return_inverse=True)
    # A graph of groups and duplicate sets: every record is an edge between its group and its set.
    groups_count, sets_count = int(group.max(initial=-1)) + 1, int(duplicate.max(initial=-1)) + 1
    nodes = groups_count + sets_count
    # Equal edges are summed: in a small integer type the sum could wrap to zero and lose the edge.
    graph = coo_array((np.ones(len(group)), (group, groups_count + duplicate)), shape=(nodes, nodes))
    _, component = connected_components(graph, directed=False)
    return number_by_appearance(component[group])


def number_by_appearance(values: np.ndarray) -> np.ndarray:
    """Return int64 [N]: `values` renamed 0, 1, 2, ... in the order in which they first appear."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _rows(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images).reshape(len(images), math.prod(images.shape[1:]))


def _digest(row: np.ndarray) -> bytes:
    return hashlib.blake2b(row.data, digest_size=16).digest()
