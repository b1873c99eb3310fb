"""Data-dependent Rényi curves, in which a clear majority costs less (Papernot et al. 2017, 2018).

If nearly all teachers agree, moving one vote hardly changes the outcome's distribution. With q a bound on the
probability that the outcome is not the plurality, Theorem 3 of Papernot et al. (2018, appendix A) bounds the RDP of
that one answer on the actual data. The data-independent value remains an upper limit.

**These curves are private.** They are functions of the votes and bound only one direction of the divergence.
Data-dependent costs may neither be published without sanitising (see `sanitize`) nor decide when to stop.

Shapes: histograms [queries, classes] of integers whose rows sum to the number of teachers; log q [queries]; orders
and curves [orders]. Everything happens in log space, because q underflows when teachers are unanimous.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.renyi import check_orders, gaussian_rdp, pure_rdp

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MAX_TEACHERS = 10_000_000
# Number of entries of a [rows, orders] temporary at a time, which stays in the cache.
_BLOCK = 1 << 16


def check_histograms(histograms: ArrayLike) -> Integers:
    """Return `histograms` as int64 [queries, classes] after validation.

    Raises:
        InputError: If they are not integers, not two-dimensional, have fewer than two classes or teachers or negative
            counts, or their rows have different sums (for example, because they are labels or single votes).
    """
    counts = np.asarray(histograms)
    if counts.dtype.kind not in "iu":
        raise InputError(f"Histograms of votes must be integers, got {counts.dtype}.")
    if counts.ndim != 2:
        raise InputError(
            f"Histograms must have shape [queries, classes], got {counts.shape}: "
            "a list of labels is not a histogram of votes."
        )
    queries, classes = counts.shape
    if queries < 1 or classes < 2:
        raise InputError(f"Histograms need at least one query and two classes, got shape {counts.shape}.")
    if counts.dtype.kind == "u" and counts.dtype.itemsize == 8 and counts.max() > _MAX_TEACHERS:
        raise InputError(f"A count of {counts.max()} votes is beyond the {_MAX_TEACHERS:,} teachers supported.")
    counts = counts.astype(np.int64, copy=False)
    if counts.min() < 0:
        raise InputError(f"Histograms hold counts of votes, but the smallest entry is {counts.min()}.")
    if counts.max() > _MAX_TEACHERS:
        raise InputError(f"A count of {counts.max()} votes is beyond the {_MAX_TEACHERS:,} teachers supported.")
    totals = counts.sum(axis=1)
    if totals.min() != totals.max():
        raise InputError(
            f"Each row of a histogram must sum to the number of teachers, but the rows sum to {totals.min()} up to "
            f"{totals.max()}: these are votes or labels, not histograms."
        )
    if totals[0] < 2:
        raise InputError(
            f"The rows of the histograms sum to {totals[0]}: an ensemble has at least two teachers, "
            "and one-hot labels are not histograms of votes."
        )
    return counts


def log_q_gnmax(histograms: ArrayLike, sigma: float) -> Floats:
    """Return the log of a bound on Pr[outcome is not the plurality] of GNMax (Papernot et al. 2018, section 4.1).

    Args:
        histograms: Counts of votes [queries, classes].
        sigma: Standard deviation of the noise, in votes.

    Returns:
        [queries], at most log(1 − 1/classes).
    """
    _require_noise("sigma", sigma)
    return _log_q(histograms, lambda gaps: log_ndtr(-gaps / (math.sqrt(2) * sigma)))


def log_q_lnmax(histograms: ArrayLike, scale: float) -> Floats:
    """Return the log of a bound on Pr[outcome is not the plurality] of LNMax (Papernot et al. 2017, Lemma 4).

    Args:
        histograms: Counts of votes [queries, classes].
        scale: Scale of the Laplace noise, 1/γ, in votes.

    Returns:
        [queries], at most log(1 − 1/classes).
    """
    _require_noise("scale", scale)
    return _log_q(histograms, lambda gaps: np.log(2 + gaps / scale) - math.log(4) - gaps / scale)


def log_p_answered(max_counts: ArrayLike, threshold: float, sigma1: float) -> Floats:
    """Return log Pr[the noisy largest count passes the threshold], with counts rounded to integers."""
    _require_noise("sigma1", sigma1)
    return np.asarray(log_ndtr((np.rint(np.asarray(max_counts, dtype=np.float64)) - threshold) / sigma1))


def gnmax_rdp(log_q: ArrayLike, sigma: float, orders: ArrayLike) -> Floats:
    """Return the RDP [queries, orders] of GNMax answers (Papernot et al. 2018, Theorem 3, optimal orders).

    Args:
        log_q: log of a bound on the probability that the outcome is not the plurality [queries], ≤ 0.
        sigma: Standard deviation of the noise, in votes.
        orders: RDP orders above 1 [orders].
    """
    alpha = check_orders(orders)
    return np.minimum(theorem_3(log_q, sigma, alpha), gaussian_rdp(math.sqrt(2), sigma, alpha))


def theorem_3(log_q: ArrayLike, sigma: float, orders: ArrayLike) -> Floats:
    """Return only the data-dependent bound [queries, orders], infinite if its conditions do not hold.

    Two Gaussian guarantees of higher orders μ1 = σ√(−log q) + 1 and μ2 = μ1 − 1 (Appendix A) bound the moment at α by
    (1 − q) A^(α−1) + q B^(α−1). Arguments are those of `gnmax_rdp`.
    """
    alpha = check_orders(orders)
    _require_noise("sigma", sigma)
    log_q = _check_log_q(log_q)
    log_keep, log_a, log_b, limit = _theorem_3_terms(log_q, sigma)
    beyond = alpha - 1
    with np.errstate(invalid="ignore", over="ignore"):
        log_moment = np.logaddexp(log_keep[:, None] + beyond * log_a[:, None], log_q[:, None] + beyond * log_b[:, None])
        bound = np.where(alpha < limit[:, None], np.maximum(log_moment, 0.0) / beyond, np.inf)
    bound[np.isneginf(log_q)] = 0.0
    return bound


def threshold_rdp(log_p: ArrayLike, sigma1: float, orders: ArrayLike) -> Floats:
    """Return the RDP [queries, orders] of threshold tests: the bound of `gnmax_rdp` for the likelier of two outcomes.

    Args:
        log_p: log of the probability of passing [queries].
        sigma1: Standard deviation of the test's noise, in votes.
        orders: RDP orders above 1 [orders].
    """
    log_p = _check_log_q(log_p)
    # A test has sensitivity 1 and an answer √2, which is equivalent to √2 times the noise.
    return gnmax_rdp(np.minimum(log_p, log1mexp(log_p)), math.sqrt(2) * sigma1, orders)


def lnmax_rdp(log_q: ArrayLike, scale: float, orders: ArrayLike) -> Floats:
    """Return the RDP [queries, orders] of LNMax answers (Papernot et al. 2017, Theorem 3, as RDP).

    Args:
        log_q: log of a bound on the probability that the outcome is not the plurality [queries], ≤ 0.
        scale: Scale of the Laplace noise, 1/γ, in votes: one answer is 2γ-DP.
        orders: RDP orders above 1 [orders].
    """
    alpha = check_orders(orders)
    _require_noise("scale", scale)
    log_q = _check_log_q(log_q)
    pure = 2 / scale
    beyond = alpha - 1
    applies = log_q <= -np.logaddexp(0.0, pure)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_keep = log1mexp(log_q)
        log_ratio = log_keep - log1mexp(np.minimum(pure + log_q, 0.0))
        log_moment = np.logaddexp(log_keep[:, None] + beyond * log_ratio[:, None], log_q[:, None] + beyond * pure)
        bound = np.where(applies[:, None], np.maximum(log_moment, 0.0) / beyond, np.inf)
    bound[np.isneginf(log_q)] = 0.0
    return np.asarray(np.minimum(bound, pure_rdp(pure, alpha)))


def summed(
    curve: Callable[[ArrayLike, float, ArrayLike], Floats],
    log_probabilities: ArrayLike,
    noise: float,
    orders: ArrayLike,
    weights: ArrayLike | None = None,
) -> Floats:
    """Return the weighted sum over queries of `gnmax_rdp`, `threshold_rdp` or `lnmax_rdp`, computed in blocks.

    Args:
        curve: One of these functions.
        log_probabilities: First argument of that function: log q or largest counts, [queries].
        noise: Standard deviation or scale of the mechanism's noise, in votes.
        orders: RDP orders above 1 [orders].
        weights: Weight of each query [queries], by default 1.

    Returns:
        [orders].
    """
    values = _check_log_q(log_probabilities)
    weight = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    if weight.shape != values.shape:
        raise InputError(f"There are {values.size} queries, but the weights have shape {weight.shape}.")
    alpha = check_orders(orders)
    distinct, where = np.unique(values, return_inverse=True)
    weight = np.asarray(np.bincount(where, weights=weight, minlength=distinct.size), dtype=np.float64)
    rows = max(1, _BLOCK // alpha.size)
    total = np.zeros_like(alpha)
    for start in range(0, distinct.size, rows):
        block = slice(start, start + rows)
        total += weight[block] @ curve(distinct[block], noise, alpha)
    return total


def log1mexp(values: ArrayLike) -> Floats:
    """Return log(1 − e^x) for x ≤ 0, accurate at both ends."""
    x = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.where(x < -1, np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


def _log_q(histograms: ArrayLike, log_tail: Callable[[Floats], Floats]) -> Floats:
    """Return the union bound over the losing classes, with tails tabulated over integer gaps."""
    counts = check_histograms(histograms)
    classes = counts.shape[1]
    # The winner itself gets an extra entry of the table that contributes nothing.
    table = np.append(log_tail(np.arange(counts.max() + 1, dtype=np.float64)), -np.inf)
    result = np.empty(len(counts))
    rows = max(1, _BLOCK // classes)
    for start in range(0, len(counts), rows):
        block = counts[start : start + rows]
        index, winner = np.arange(len(block)), block.argmax(axis=1)
        gaps = block[index, winner][:, None] - block
        gaps[index, winner] = len(table) - 1
        terms = table[gaps]
        peak = table[gaps.min(axis=1)]
        result[start : start + rows] = peak + np.log(np.exp(terms - peak[:, None]).sum(axis=1))
    return np.minimum(result, math.log1p(-1 / classes))


def _theorem_3_terms(log_q: Floats, sigma: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Return log(1 − q), log A, log B [queries] of Theorem 3, and the order below which it holds (0: nowhere)."""
    variance = sigma * sigma
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mu2 = np.sqrt(variance * -log_q)
        mu1 = mu2 + 1
        epsilon1, epsilon2 = mu1 / variance, mu2 / variance
        log_keep = log1mexp(log_q)
        log_a = log_keep - log1mexp(np.minimum((log_q + epsilon2) * (1 - 1 / mu2), 0.0))
        log_b = epsilon1 - log_q / mu2
        holds = (
            (mu2 > 1)
            & (-log_q > epsilon2)
            & (log_q <= (mu2 - 1) * epsilon2 - mu2 * (np.log1p(1 / mu2) + np.log1p(1 / (mu2 - 1))))
        )
    return log_keep, log_a, log_b, np.where(holds, mu1, 0.0)


def _check_log_q(log_q: ArrayLike) -> Floats:
    values = np.atleast_1d(np.asarray(log_q, dtype=np.float64))
    if values.ndim != 1 or not np.all(values <= 0):
        raise InputError("Logarithms of probabilities must be a list of numbers ≤ 0.")
    return values


def _require_noise(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise SettingError(f"{name} must be a positive number, got {value!r}.")
