"""The worst histogram at every distance from a given one, for many histograms at once.

Appendix B of Papernot et al. (2018) shows that, at distance d, the price of an answer is most sensitive after one of
two fixed strategies, each step of which moves one vote:

- towards doubt, while q < q1: from the winner to the runner-up;
- towards agreement, while q > q0: from the largest of the rest to the winner.

Walks form a ragged set of points (query, distance), stored flat. q is monotonic along a walk, so its length is found
by bisection. At each point the losing classes fall into one nearest group and a few others whose counts do not change
along the walk: classes with equal counts form one group, which drops out once its tail is below rounding.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Number of points in a block, and number computed at a time (temporaries of this size stay in the cache).
_HELD = 1 << 21
_POINTS = 1 << 14
# Ratio to the nearest loser's tail below which another loser's tail no longer changes the sum.
_NEGLIGIBLE = math.log(1e-19)


class Points(NamedTuple):
    """Points of walks: one entry per (query, distance).

    `gap` is the difference between the two largest counts if q depends only on it, else −1.
    """

    query: Integers
    distance: Integers
    log_q: Floats
    gap: Integers


def walks(histograms: Integers, sigma: float, log_q0: float, log_q1: float) -> Iterator[Points]:
    """Yield all points off the plateau [q1, q0] on the walks from these histograms.

    Args:
        histograms: Counts of votes [queries, classes], rows summing to the same number of teachers.
        sigma: Standard deviation of the noise, in votes.
        log_q0: Upper end of the plateau.
        log_q1: Lower end of the plateau.

    Yields:
        `Points` of the walks, in blocks. The distances of one query are 0, 1, … without a gap; a query that begins on
        the plateau has none.
    """
    teachers, classes = int(histograms[0].sum()), histograms.shape[1]
    tail = np.append(log_ndtr(-np.arange(teachers + 1) / (math.sqrt(2) * sigma)), -np.inf)
    cap = math.log1p(-1 / classes)
    rows = max(1, _HELD // teachers)
    for start in range(0, len(histograms), rows):
        counts = np.sort(histograms[start : start + rows], axis=1)[:, ::-1]
        doubt, agreement = _DecreasingMargin(counts, tail), _GrowingMargin(counts, tail)
        for walk, length in (
            (doubt, _steps(doubt, lambda log_q: log_q < log_q1)),
            (agreement, _steps(agreement, lambda log_q: log_q > log_q0)),
        ):
            query = np.repeat(np.arange(len(counts)), length)
            distance = np.arange(len(query)) - np.repeat(np.cumsum(length) - length, length)
            for first in range(0, len(query), _POINTS):
                part = slice(first, first + _POINTS)
                log_q, gap = walk.log_q(query[part], distance[part])
                yield Points(query[part] + start, distance[part], np.minimum(log_q, cap), gap)


class _Walk:
    """Histograms sorted from the winner down [rows, classes], and how they change as votes move.

    Args:
        tail: log of the probability that a loser this many votes behind wins [0..teachers], and −∞ beyond.
        others: The sorted counts of the losers that are kept as groups of equal count [rows, losers].
    """

    def __init__(self, counts: Integers, tail: Floats, others: Integers) -> None:
        self.tail = tail
        self.winner = counts[:, 0]
        self.values, self.multiplicity = _run_lengths(others)
        # Ordered by group, so that one group's entries are contiguous; absent groups point beyond the table.
        behind = np.where(self.multiplicity > 0, self.winner[:, None] - self.values, 2 * len(tail))
        self.group_behind = np.ascontiguousarray(behind.T)
        self.group_size = np.ascontiguousarray(self.multiplicity.T).astype(np.float64)
        self.last = self.reach(counts)

    def reach(self, counts: Integers) -> Integers:
        """Return the largest distance of each walk [rows]."""
        raise NotImplementedError

    def nearest(self, row: Integers, distance: Integers) -> tuple[Integers, Integers, Floats]:
        """Return the gap of the nearest losers, the winner's gained votes and a correction at each point.

        The correction is added to the sum of the groups' tails, in units of the tail at that gap.
        """
        raise NotImplementedError

    def log_q(self, row: Integers, distance: Integers) -> tuple[Floats, Integers]:
        """Return log q at each point, and the gap of the nearest loser if only that loser matters, else −1."""
        nearest, gained, total = self.nearest(row, distance)
        point, gap, closest = np.arange(len(row)), nearest, self.tail[nearest]
        for behind, size in zip(self.group_behind, self.group_size, strict=True):
            # No loser is nearer than the nearest group: the walk has already lowered any that were.
            ratio = self.tail.take(np.maximum(behind.take(row) + gained, gap), mode="clip") - closest
            matters = np.flatnonzero(ratio > _NEGLIGIBLE)
            if matters.size < point.size:
                # Groups come in falling order, so a negligible group is followed only by negligible ones.
                point, row = point.take(matters), row.take(matters)
                gap, gained = gap.take(matters), gained.take(matters)
                closest, ratio = closest.take(matters), ratio.take(matters)
            if not point.size:
                break
            total[point] += size.take(row) * np.exp(ratio)
        return self.tail[nearest] + np.log(total), np.where(total == 1.0, nearest, -1)


class _DecreasingMargin(_Walk):
    def __init__(self, counts: Integers, tail: Floats) -> None:
        self.runner_up = counts[:, 1]
        super().__init__(counts, tail, counts[:, 2:])

    def reach(self, counts: Integers) -> Integers:
        return np.asarray((counts[:, 0] - counts[:, 1]) // 2)

    def nearest(self, row: Integers, distance: Integers) -> tuple[Integers, Integers, Floats]:
        return (self.winner - self.runner_up)[row] - 2 * distance, -distance, np.ones(len(row))


class _GrowingMargin(_Walk):
    """Walk towards agreement: votes taken one by one from the largest losing count level the losers.

    To bring all losers down to the count t takes F(t) = Σ_j max(n_j − t, 0) votes, so after d votes they stand at the
    smallest t with F(t) ≤ d, and d − F(t) of them one vote lower.
    """

    def __init__(self, counts: Integers, tail: Floats) -> None:
        super().__init__(counts, tail, counts[:, 1:])
        self.size = np.cumsum(self.multiplicity, axis=1)
        drop = -np.diff(self.values, axis=1, prepend=self.values[:, :1]) * (self.size - self.multiplicity)
        self.cost = np.cumsum(drop, axis=1)
        # One sorted list for all rows, so that one search finds every point's group.
        self.stride = int(self.cost.max()) + len(tail)
        self.keys = (self.cost + np.arange(len(counts))[:, None] * self.stride).ravel()

    def reach(self, counts: Integers) -> Integers:
        return np.asarray(counts[:, 1:].sum(axis=1))

    def nearest(self, row: Integers, distance: Integers) -> tuple[Integers, Integers, Floats]:
        entry = np.searchsorted(self.keys, row * self.stride + distance, side="right") - 1
        down, lower = np.divmod(distance - self.cost.ravel()[entry], self.size.ravel()[entry])
        gap = self.winner[row] + distance - self.values.ravel()[entry] + down
        # Losers one vote lower were counted at their group's level; correct for them here.
        return gap, distance, lower * np.expm1(self.tail[gap + 1] - self.tail[gap])


def _steps(walk: _Walk, going: Callable[[Floats], NDArray[np.bool_]]) -> Integers:
    """Return how many distances 0, 1, … of each walk are `going` [rows], by bisection over the monotonic q."""
    row = np.arange(len(walk.winner))
    low, high = np.full(len(row), -1), walk.last + 1
    while np.any(low + 1 < high):
        middle = (low + high) // 2
        # Finished rows evaluate some distance within their reach, and ignore the result.
        still = going(walk.log_q(row, np.clip(middle, 0, walk.last))[0])
        open_ = low + 1 < high
        low, high = np.where(open_ & still, middle, low), np.where(open_ & ~still, middle, high)
    return high


def _run_lengths(counts: Integers) -> tuple[Integers, Integers]:
    """Return the distinct values of each non-increasing row [rows, most] and their counts; absent ones have count 0.

    Absent entries repeat the row's last value.
    """
    rows, columns = counts.shape
    if not columns:
        return counts, counts
    starts = np.ones(counts.shape, dtype=bool)
    starts[:, 1:] = counts[:, 1:] != counts[:, :-1]
    rank = np.cumsum(starts, axis=1) - 1
    most = int(rank.max()) + 1
    values = np.repeat(counts[:, -1:], most, axis=1)
    values[np.arange(rows)[:, None], rank] = counts
    occurrences = np.bincount((np.arange(rows)[:, None] * most + rank).ravel(), minlength=rows * most)
    return values, occurrences.reshape(rows, most)
