"""Query selection: a student of the released answers chooses the next queries, at no cost in privacy.

Each rule takes the student's probabilities of all queries, the candidates and a number of queries to select, and
returns candidates, best first. All inputs are public: probabilities of a student of released answers, and features of
public images.

- `order`: the queries' own order;
- `balanced`: equal numbers of each predicted class over all queries asked so far and selected now;
- `uncertain`: the largest entropy first (Lewis and Gale 1994);
- `diverse`: farthest-first traversal of the feature space from the queries asked before (Sener and Savarese 2018,
  Algorithm 1).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from terrine.errors import InputError


@dataclass(frozen=True, eq=False)
class Pool:
    """All queries of a run, with the student's probabilities.

    Attributes:
        candidates: int64, ascending: the queries that may be asked.
        features: float32 [queries, features], of the student's backbone.
        probabilities: float [queries, classes], or None before there is a student.
    """

    candidates: np.ndarray
    features: np.ndarray
    probabilities: np.ndarray | None = None


Rule = Callable[[Pool, int], np.ndarray]
"""(pool, minimum count) -> int64 numbers of candidates, best first, each once."""


def in_order(pool: Pool, count: int) -> np.ndarray:
    """Return the candidates in their own order."""
    return pool.candidates


def uncertain(pool: Pool, count: int) -> np.ndarray:
    """Return all candidates by the entropy of the student's answer, largest first; in their order without a student."""
    if pool.probabilities is None:
        return pool.candidates
    own = np.asarray(pool.probabilities[pool.candidates], np.float64)
    entropy = -(own * np.log(np.maximum(own, np.finfo(np.float64).tiny))).sum(axis=1)
    return pool.candidates[np.argsort(-entropy, kind="stable")]


def balanced(pool: Pool, count: int) -> np.ndarray:
    """Return all candidates, ordered so that predicted classes stay balanced, counting the queries asked before.

    Within a class the queries keep their order. Without a student, candidates are returned in index order.
    """
    if pool.probabilities is None:
        return pool.candidates
    guesses = pool.probabilities.argmax(axis=1)
    classes = pool.probabilities.shape[1]
    queried = np.ones(len(guesses), dtype=bool)
    queried[pool.candidates] = False
    already = np.bincount(guesses[queried], minlength=classes)
    own = guesses[pool.candidates]
    place = np.empty(len(own), dtype=np.int64)
    for number in range(classes):
        members = np.flatnonzero(own == number)
        place[members] = already[number] + np.arange(len(members))
    return pool.candidates[np.lexsort((own, place))]


def diverse(pool: Pool, count: int) -> np.ndarray:
    """Return `count` candidates by farthest-first traversal, each farthest from all queries asked or chosen before.

    Each selected query needs one pass over the features. If no query was asked, the traversal starts from the query
    nearest the mean.
    """
    features = np.asarray(pool.features, np.float32)
    queried = np.ones(len(features), dtype=bool)
    queried[pool.candidates] = False
    own = features[pool.candidates]
    squares = np.einsum("qd,qd->q", own, own)
    order = np.empty(min(count, len(own)), dtype=np.int64)

    def to(point: np.ndarray) -> np.ndarray:
        distance: np.ndarray = squares - 2 * (own @ point) + point @ point
        return distance

    if queried.any():
        nearest = np.full(len(own), np.inf, dtype=np.float32)
        for block in np.array_split(features[queried], max(1, int(queried.sum()) // 256)):
            distances = squares[:, None] - 2 * (own @ block.T) + np.einsum("qd,qd->q", block, block)
            np.minimum(nearest, distances.min(axis=1), out=nearest)
    else:
        # The first one chosen is the one nearest the mean; from then on, distances are to the chosen ones.
        nearest = -to(features.mean(axis=0))
    for position in range(len(order)):
        best = int(nearest.argmax())
        order[position] = best
        distance = to(own[best])
        nearest = distance if position == 0 and not queried.any() else np.minimum(nearest, distance)
        nearest[order[: position + 1]] = -np.inf
    return pool.candidates[order]


RULES: dict[str, Rule] = {"order": in_order, "balanced": balanced, "uncertain": uncertain, "diverse": diverse}


def select(rule: str, pool: Pool, count: int) -> np.ndarray:
    """Return the numbers of at least `count` candidates (or all there are), best first, by the rule of this name.

    Raises:
        InputError: Features and probabilities have different numbers of queries, or a candidate is not a query.
    """
    queries = len(pool.features)
    if pool.probabilities is not None and len(pool.probabilities) != queries:
        raise InputError(f"There are features of {queries} queries and probabilities of {len(pool.probabilities)}.")
    if len(pool.candidates) and not (pool.candidates.min() >= 0 and pool.candidates.max() < queries):
        raise InputError(f"Candidates run to {pool.candidates.max()}, but there are {queries} queries.")
    return RULES[rule](pool, count)
