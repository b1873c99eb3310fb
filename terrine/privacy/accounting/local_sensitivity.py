"""Local sensitivity of a data-dependent RDP value to one teacher's votes (Papernot et al. 2018, Appendix B).

At a fixed order the cost of an answer is a function β of q alone. Moving one vote raises q to at most

    B_U(q) = (m − 1) Q(Q⁻¹(q/(m − 1)) − √2/σ)      and lowers it no further than B_L(q), with + instead of −,

so max(β(B_U(q)) − β(q), β(q) − β(B_L(q))) bounds the local sensitivity. From q0 on the data-independent cost applies;
q1 = B_L(q0); on the *plateau* [q1, q0] the bound is taken at q1, where it is largest. At distance d from a histogram,
the worst histogram is reached by a fixed strategy: with q < q1, move d votes from the winner to the runner-up; with
q > q0, give the winner d votes taken one by one from the largest of the rest; stop on the plateau and stay.

All computations are in log space with tails tabulated over integer gaps, so that unanimous teachers cause no underflow.
All results are private: they are the input of `sanitize`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy  # loads submodules on first use: most mechanisms need none of this
from numpy.typing import ArrayLike, NDArray

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.data_dependent import (
    check_histograms,
    gnmax_rdp,
    log_p_answered,
    theorem_3,
    threshold_rdp,
)
from terrine.privacy.accounting.vote_walks import walks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Number of distinct largest counts processed at a time.
_ROWS = 512


@dataclass(frozen=True)
class AnswerPrice:
    """β, the RDP of a GNMax answer at one order as a function of log q, and how much one moved vote changes it.

    Args:
        sigma: Standard deviation of the noise, in votes.
        order: RDP order α > 1.

    Raises:
        SettingError: A parameter is invalid, or the data-dependent bound holds for no q at this order.
    """

    sigma: float
    classes: int
    order: float

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and math.isfinite(self.sigma)):
            raise SettingError(f"sigma must be a positive number, got {self.sigma!r}.")
        if not self.classes >= 2:
            raise SettingError(f"An ensemble votes on at least two classes, got {self.classes!r}.")
        if not (self.order > 1 and math.isfinite(self.order)):
            raise SettingError(f"The RDP order must be a finite number above 1, got {self.order!r}.")

    @property
    def ceiling(self) -> float:
        """Data-independent RDP of one answer, α/σ²."""
        return self.order / self.sigma**2

    @cached_property
    def log_q0(self) -> float:
        """log q above which the data-independent price applies."""
        # The theorem's conditions hold below all three; the last hundredth keeps μ1 above the order.
        top = min(-((1 + 1 / self.sigma) ** 2), -(((self.order - 0.99) / self.sigma) ** 2), -1 / self.sigma**2)
        if self._excess(top) < 0:
            return float(top)
        low = 2 * top
        while self._excess(low) > 0:
            low *= 1.5
        return float(scipy.optimize.brentq(self._excess, low, top, xtol=1e-300, rtol=4 * 2.0**-52, maxiter=500))

    @cached_property
    def log_q1(self) -> float:
        """Lower end of the plateau: one move takes it to q0."""
        return float(self.down(np.array([self.log_q0]))[0])

    @cached_property
    def plateau(self) -> float:
        """Largest local sensitivity of one answer, which is reached at q1."""
        q1 = np.array([self.log_q1])
        here = float(self.at(q1)[0])
        # One move up from q1 is q0, where the data-independent price begins.
        return max(self.ceiling - here, here - float(self.at(self.down(q1))[0]))

    def at(self, log_q: Floats) -> Floats:
        """Return β [points] at log q [points]."""
        price = np.full(len(log_q), self.ceiling)
        below = log_q < self.log_q0
        price[below] = gnmax_rdp(log_q[below], self.sigma, [self.order])[:, 0]
        return price

    def up(self, log_q: Floats) -> Floats:
        """Return log B_U(q), at most 0."""
        return self._moved(self._tail_point(log_q), 1.0)

    def down(self, log_q: Floats) -> Floats:
        """Return log B_L(q)."""
        return self._moved(self._tail_point(log_q), -1.0)

    def local_sensitivity(self, log_q: Floats) -> Floats:
        """Return a bound on the change of β by one moved vote [points] at log q [points]."""
        bound = np.full(len(log_q), self.plateau)
        for off in (np.flatnonzero(log_q < self.log_q1), np.flatnonzero(log_q > self.log_q0)):
            here, tail = self.at(log_q[off]), self._tail_point(log_q[off])
            rise = self.at(self._moved(tail, 1.0)) - here
            bound[off] = np.maximum(rise, here - self.at(self._moved(tail, -1.0)))
        return bound

    def conditions(self) -> tuple[bool, bool]:
        """Return whether C5 and C6 hold at this order; otherwise the module's strategy may miss the worst case.

        C5: β does not decrease on (0, q0). C6: β(B_U(q)) − β(q) does not decrease on (0, q1). Both are checked on a
        grid that is dense in q and in log q.
        """
        return _grows(self.at, self.log_q0), _grows(lambda x: self.at(self.up(x)) - self.at(x), self.log_q1)

    def always_independent(self, teachers: int) -> bool:
        """Return whether even unanimous teachers pay the data-independent price, which has no sensitivity."""
        unanimous = float(scipy.special.log_ndtr(-teachers / (math.sqrt(2) * self.sigma))) + math.log(self.classes - 1)
        return unanimous >= self.log_q0

    def _excess(self, log_q: float) -> float:
        return float(theorem_3(log_q, self.sigma, [self.order])[0, 0]) - self.ceiling

    def _tail_point(self, log_q: Floats) -> Floats:
        """Return −Q⁻¹(q/(m − 1)), from log q."""
        return np.asarray(scipy.special.ndtri_exp(log_q - math.log(self.classes - 1)))

    def _moved(self, tail_point: Floats, votes: float) -> Floats:
        log_q = math.log(self.classes - 1) + scipy.special.log_ndtr(tail_point + votes * math.sqrt(2) / self.sigma)
        return np.asarray(np.minimum(log_q, 0.0))


def answer_sensitivities(histograms: ArrayLike, sigma: float, order: float) -> Floats:
    """Bound on the local sensitivity of each answer's price within distance d of the votes.

    Args:
        histograms: Counts of votes [queries, classes].
        sigma: Standard deviation of the noise, in votes.
        order: RDP order α > 1.

    Returns:
        [queries, teachers], for d = 0, 1, … teachers − 1.
    """
    counts = check_histograms(histograms)
    price = AnswerPrice(sigma, counts.shape[1], order)
    teachers = int(counts[0].sum())
    result = np.full((len(counts), teachers), price.plateau)
    for query, distance, value in _off_plateau(price, counts):
        result[query, distance] = value
    return result


def summed_answer_sensitivity(
    histograms: ArrayLike, sigma: float, order: float, weights: ArrayLike | None = None
) -> Floats:
    """LS_d [teachers] of a whole set of answers: one teacher moves a vote in every query.

    Args:
        histograms: Counts of votes [queries, classes].
        sigma: Standard deviation of the noise, in votes.
        order: RDP order α > 1.
        weights: Weight of each answer [queries], by default 1.
    """
    counts = check_histograms(histograms)
    price = AnswerPrice(sigma, counts.shape[1], order)
    teachers = int(counts[0].sum())
    weight = _check_weights(weights, len(counts))
    if price.always_independent(teachers):
        return np.zeros(teachers)
    # Only the sorted counts matter, so queries that differ only in the order of the classes are computed once.
    distinct, where = np.unique(np.sort(counts, axis=1), axis=0, return_inverse=True)
    weight = np.asarray(np.bincount(where.ravel(), weights=weight, minlength=len(distinct)), dtype=np.float64)
    total, length = np.zeros(teachers), np.zeros(len(distinct), dtype=np.int64)
    for query, distance, value in _off_plateau(price, distinct):
        total += np.bincount(distance, weights=weight[query] * value, minlength=teachers)
        length += np.bincount(query, minlength=len(distinct))
    arrived = np.bincount(length, weights=weight, minlength=teachers + 1)[:teachers]
    return total + price.plateau * np.cumsum(arrived)


def threshold_sensitivities(
    max_counts: ArrayLike, teachers: int, threshold: float, sigma1: float, order: float
) -> Floats:
    """Bound on the local sensitivity of each threshold test's price at distance d of its largest count.

    Args:
        max_counts: Largest counts of votes [queries], rounded to integers; or Interactive's largest margins.
        teachers: Number of teachers.
        threshold: Threshold T of the noisy test, in votes.
        sigma1: Standard deviation of the test's noise, in votes.
        order: RDP order α > 1.

    Returns:
        [queries, teachers], for d = 0, 1, … teachers − 1; 0 if no count is at distance d.

    Raises:
        InputError: a largest count outside 0..teachers.
    """
    at_count = _threshold_table(teachers, threshold, sigma1, order)
    largest = np.asarray(np.rint(np.asarray(max_counts, dtype=np.float64)), dtype=np.int64)
    if largest.ndim != 1 or np.any((largest < 0) | (largest > teachers)):
        raise InputError(f"The largest counts must be a list of numbers from 0 to {teachers} teachers.")
    # Counts outside 0..teachers, to which no vote can lead, contribute nothing.
    padded = np.concatenate((np.zeros(teachers), at_count, np.zeros(teachers)))
    centre, distance = largest[:, None] + teachers, np.arange(teachers)
    return np.asarray(np.maximum(padded[centre + distance], padded[centre - distance]))


def summed_threshold_sensitivity(
    max_counts: ArrayLike, teachers: int, threshold: float, sigma1: float, order: float
) -> Floats:
    """LS_d [teachers] of a whole set of threshold tests; arguments as for `threshold_sensitivities`.

    A test's own bound may fall again with the distance. A neighbour at distance d may move fewer votes in some
    queries than in others, so each query counts with its largest bound up to d.
    """
    largest, count = np.unique(np.rint(np.asarray(max_counts, dtype=np.float64)), return_counts=True)
    total = np.zeros(teachers)
    for start in range(0, len(largest), _ROWS):
        each = threshold_sensitivities(largest[start : start + _ROWS], teachers, threshold, sigma1, order)
        total += count[start : start + _ROWS] @ np.maximum.accumulate(each, axis=1)
    return total


def _threshold_table(teachers: int, threshold: float, sigma1: float, order: float) -> Floats:
    """Return the largest change of a test's price when its largest count moves by one, at each count 0..teachers."""
    price = threshold_rdp(log_p_answered(np.arange(teachers + 1), threshold, sigma1), sigma1, [order])[:, 0]
    step = np.abs(np.diff(price))
    return np.asarray(np.maximum(np.append(step, 0.0), np.append(0.0, step)))


def _off_plateau(price: AnswerPrice, counts: Integers) -> Iterator[tuple[Integers, Integers, Floats]]:
    """Yield (query, distance, sensitivity) of all points before a query's worst histogram reaches the plateau."""
    teachers = int(counts[0].sum())
    gaps = np.arange(teachers + 1)
    # Far along most walks only the runner-up matters: those points share one value per integer gap.
    by_gap = price.local_sensitivity(scipy.special.log_ndtr(-gaps / (math.sqrt(2) * price.sigma)))
    for points in walks(counts, price.sigma, price.log_q0, price.log_q1):
        value = by_gap[points.gap]
        several = np.flatnonzero(points.gap < 0)
        value[several] = price.local_sensitivity(points.log_q[several])
        yield points.query, points.distance, value


def _check_weights(weights: ArrayLike | None, queries: int) -> Floats:
    weight = np.ones(queries) if weights is None else np.asarray(weights, dtype=np.float64)
    if weight.shape != (queries,) or not np.all(weight >= 0):
        raise InputError(f"There are {queries} queries, so there must be {queries} weights ≥ 0, got {weight.shape}.")
    return weight


def _grows(function: Callable[[Floats], Floats], log_top: float) -> bool:
    """Return whether `function` of log q does not decrease below `log_top`."""
    grid = log_top + np.union1d(np.linspace(-740.0, 0.0, 2000), np.log(np.linspace(1e-6, 1.0, 2000)))
    value = function(grid)
    return bool(np.all(np.maximum.accumulate(value) - value <= 1e-12 * value.max()))
