"""The price of a search: run a mechanism a random number of times and release only the best outcome.

A search over private outcomes leaks through the choice itself. When the number of runs K is drawn from a suitable
distribution, the price is a small multiple of that of a single run, whatever the search picks by (Papernot & Steinke
2022).
"""

import math

import numpy as np
import scipy  # loads scipy.optimize where it is used: settings are read without
from numpy.typing import NDArray

from terrine.errors import SettingError


def repeat_and_select_rdp(
    orders: NDArray[np.float64], rdp: NDArray[np.float64], mean: float, shape: float
) -> NDArray[np.float64]:
    """RDP of releasing the best of K runs, each with the curve `rdp`.

    Args:
        orders: RDP orders above 1 [orders].
        rdp: RDP of one run [orders].
        shape: Shape of K's truncated negative binomial distribution (Theorem 2): 0 is the logarithmic, 1 the
            geometric distribution; infinite is the Poisson distribution (Theorem 6).

    Raises:
        SettingError: a mean or shape without a known price.
    """
    _require_mean(mean)
    if shape == math.inf:
        # At the ε̂ that Theorem 6 asks of each order, e^ε̂ = 1 + 1/(α − 1), the δ̂ of one run by the same curve.
        log_delta = _log_delta_of_rdp(orders, rdp, np.log1p(1 / (orders - 1)))
        curve = rdp + mean * np.exp(log_delta) + math.log(mean) / (orders - 1)
    else:
        gamma = success_probability(mean, shape)
        helper = np.min((1 - 1 / orders) * rdp - math.log(gamma) / orders)
        curve = rdp + (1 + shape) * helper + math.log(mean) / (orders - 1)
    # RDP grows with the order: a smaller value at a larger order holds for the smaller order too.
    descending = np.argsort(-orders)
    best = np.empty_like(curve)
    best[descending] = np.minimum.accumulate(curve[descending])
    return np.maximum(best, 0.0)


def success_probability(mean: float, shape: float) -> float:
    """γ of the truncated negative binomial distribution with this `mean` and `shape` (Definition 1).

    Raises:
        SettingError: a mean below 1 or a negative or infinite shape.
    """
    _require_mean(mean)
    if not (shape >= 0 and math.isfinite(shape)):
        raise SettingError(f"The shape must be a number ≥ 0, got {shape!r}.")
    if mean == 1:
        return 1.0
    if shape == 1:
        return 1 / mean
    low = -math.log(mean) - 1.0
    while _log_mean(low, shape) < math.log(mean):
        low *= 2
    log_gamma = scipy.optimize.brentq(
        lambda value: _log_mean(value, shape) - math.log(mean), low, 0.0, xtol=1e-300, rtol=1e-14
    )
    # A smaller γ means more runs: rounding down keeps the price on the safe side.
    return math.exp(float(log_gamma) * (1 + 1e-12))


def _require_mean(mean: float) -> None:
    if not (mean >= 1 and math.isfinite(mean)):
        raise SettingError(f"The mean number of runs must be at least 1, got {mean!r}.")


def _log_mean(log_gamma: float, shape: float) -> float:
    """log E[K] at γ: log of η(1 − γ) / (γ(1 − γ^η)), or of (1/γ − 1)/log(1/γ) for η = 0."""
    if log_gamma == 0:
        return 0.0
    log_failure = math.log(-math.expm1(log_gamma))
    if shape * -log_gamma < 1e-12:
        return log_failure - log_gamma - math.log(-log_gamma)
    return math.log(shape) + log_failure - log_gamma - math.log(-math.expm1(shape * log_gamma))


def _log_delta_of_rdp(
    orders: NDArray[np.float64], rdp: NDArray[np.float64], epsilons: NDArray[np.float64]
) -> NDArray[np.float64]:
    """log of the smallest δ an RDP curve proves at each of `epsilons` (Canonne, Kamath & Steinke 2020)."""
    with np.errstate(invalid="ignore"):
        proved = (orders - 1) * (rdp - epsilons[:, None] + np.log1p(-1 / orders)) - np.log(orders)
    # δ ≤ TV ≤ √(1 − e^−KL) ≤ √(1 − e^−RDP), which helps where the curve is tiny.
    total_variation = 0.5 * np.log(-np.expm1(-rdp), out=np.full_like(rdp, -np.inf), where=rdp > 0)
    return np.asarray(np.minimum(np.minimum(np.min(proved, axis=1), np.min(total_variation)), 0.0))
