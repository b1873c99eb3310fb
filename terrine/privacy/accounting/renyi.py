"""Rényi differential privacy (RDP) of events, and conversion of RDP curves to ε.

RDP is the secondary accountant: it prices a search over runs, reproduces the papers' figures for comparison, and is the
basis of `data_dependent`. RDP at one order is also the measure of an account whose first release is not Gaussian
(`filters`). For Gaussian mechanisms `gaussian` is exact and always tighter; for Laplace noise and
randomised response `loss_distribution` nearly always is.

Two conversions to (ε, δ) exist, and figures made with different ones must not be compared:
- `classical`, ε = RDP + log(1/δ)/(α−1) (Mironov 2017, Proposition 3), which the PATE papers use;
- `improved`, ε = RDP + log((α−1)/α) − (log δ + log α)/(α−1) (Canonne, Kamath & Steinke 2020, Proposition 12).

Curves are arrays over `orders`, all above 1. Everything in this module depends on public parameters only.
"""

import functools
import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.errors import SettingError
from terrine.privacy.accounting.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
    SampledGaussianEvent,
    UnsupportedEventError,
    counts,
)
from terrine.privacy.accounting.gaussian import mu_squared, pure_mu

Conversion = Literal["classical", "improved"]
Floats = NDArray[np.float64]


def default_orders() -> Floats:
    """Return the orders over which ε is minimised: 600 from 1.01 to 10,001, evenly spaced in log(α − 1)."""
    return 1.0 + np.geomspace(1e-2, 1e4, 600)


def reference_orders() -> Floats:
    """Return the 298 orders of the reference implementation of PATE (2018), sorted."""
    return np.sort(np.concatenate((np.arange(2, 101, 0.5), np.logspace(np.log10(100), np.log10(500), num=100))))


def check_orders(orders: ArrayLike) -> Floats:
    """Return `orders` as a vector of floats.

    Raises:
        SettingError: If `orders` is empty, not a vector, or contains an order of 1 or less.
    """
    vector = np.asarray(orders, dtype=np.float64)
    if vector.ndim != 1 or not vector.size or not np.all((vector > 1) & np.isfinite(vector)):
        raise SettingError("RDP orders must be a list of finite numbers above 1.")
    return vector


def convert(
    orders: ArrayLike, rdp: ArrayLike, delta: float, conversion: Conversion = "improved"
) -> tuple[float, float]:
    """Return the smallest ε of an RDP curve at `delta`, and the order at which it is reached.

    Args:
        orders: RDP orders α > 1, [orders].
        rdp: RDP at each of these orders, [orders].
        delta: δ.
        conversion: `classical` as in the PATE papers, or `improved`.

    Raises:
        SettingError: If δ is outside (0, 1), shapes differ, an RDP value is negative or NaN, or the conversion unknown.
    """
    alpha, curve = check_orders(orders), np.asarray(rdp, dtype=np.float64)
    if curve.shape != alpha.shape:
        raise SettingError(f"The RDP curve has shape {curve.shape}, its orders {alpha.shape}: they must be the same.")
    if not np.all(curve >= 0):
        raise SettingError("An RDP curve must hold numbers ≥ 0.")
    epsilons = curve + conversion_cost(alpha, delta, conversion)
    if conversion == "improved":
        # δ² ≥ 1 − e^−RDP bounds the total variation itself (Bretagnolle–Huber): no ε is needed at all.
        epsilons = np.where(-np.expm1(-curve) < delta * delta, 0.0, epsilons)
    best = int(np.argmin(epsilons))
    return max(0.0, float(epsilons[best])), float(alpha[best])


def conversion_cost(orders: Floats, delta: float, conversion: Conversion = "improved") -> Floats:
    """Return the difference between ε and RDP at each order; may be negative for `improved`."""
    if not 0 < delta < 1:
        raise SettingError(f"delta must lie strictly between 0 and 1, got {delta!r}.")
    match conversion:
        case "classical":
            return np.asarray(-math.log(delta) / (orders - 1))
        case "improved":
            return np.asarray(np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1))
        case _:
            raise SettingError(f'The conversion must be "classical" or "improved", got {conversion!r}.')


def gaussian_rdp(sensitivity: float, sigma: float, orders: Floats) -> Floats:
    """Return α s² / (2σ²): RDP of a Gaussian mechanism with L2 sensitivity s (Mironov 2017, Corollary 3)."""
    return orders * ((sensitivity / sigma) ** 2 / 2)


def laplace_rdp(sensitivity: float, scale: float, orders: Floats) -> Floats:
    """Return the RDP of a Laplace mechanism with this L1 sensitivity (Mironov 2017, Proposition 6).

    The curve is convex in the shift, so moving one coordinate by the whole sensitivity is the worst case.
    """
    shift = sensitivity / scale
    towards = np.log(orders / (2 * orders - 1)) + (orders - 1) * shift
    away = np.log((orders - 1) / (2 * orders - 1)) - orders * shift
    return np.maximum(np.logaddexp(towards, away), 0.0) / (orders - 1)


def pure_rdp(epsilon: float, orders: Floats) -> Floats:
    """Return the RDP of any ε-DP mechanism: min(ε²α/2, ε) (Bun & Steinke 2016, Proposition 3.3)."""
    return np.minimum(epsilon * epsilon / 2 * orders, epsilon)


def randomised_response_rdp(epsilon: float, categories: int, orders: Floats) -> Floats:
    """Return the exact RDP of k-ary randomised response between any two inputs."""
    log_other = -math.log(math.exp(-epsilon) * (categories - 1) + 1) - epsilon
    log_kept = log_other + epsilon
    terms = [orders * log_kept + (1 - orders) * log_other, orders * log_other + (1 - orders) * log_kept]
    if categories > 2:
        terms.append(np.full_like(orders, math.log(categories - 2) + log_other))
    return np.asarray(np.maximum(np.logaddexp.reduce(terms), 0.0) / (orders - 1))


# Grid for sampled Gaussians: spacing of its points and farthest mean of the integrand, in standard deviations.
_POINTS, _FARTHEST = 0.05, 160.0
# Rounding of a sum over that grid, and of one of its terms.
_ROUNDING, _ROUNDING_OF_TERMS = 1e-10, 2.0**-51


@functools.lru_cache(maxsize=4096)
def _sampled_gaussian_rdp(plus: float, minus: float, rate: float, alpha: float) -> float:
    """Return the RDP of noise N(0, 1) on a Poisson sample in one direction (`loss_distribution`).

    E_Q[(P/Q)^α] is integrated by the trapezoidal rule. The integrand is analytic in a strip of half-width π/shift, so
    the error falls exponentially with the distance of the points (Trefethen & Weideman 2014, Theorem 5.1). At orders
    too large for the grid, the RDP without sampling is returned, which is an upper bound.
    """
    whole = alpha * (plus + minus) ** 2 / 2
    if rate == 1 or alpha * (plus + minus) > _FARTHEST:
        return whole
    log_in, log_out = math.log(rate), math.log1p(-rate)
    step = _POINTS / max(1.0, plus, minus)
    x = np.arange(-12.0 - minus, alpha * (plus + minus) + 12.0, step)
    log_q = np.logaddexp(log_out, log_in - minus * (x + minus / 2))
    loss = np.logaddexp(log_out, log_in + plus * (x - plus / 2)) - log_q
    log_q += math.log(step / math.sqrt(2 * math.pi)) - x * x / 2
    far = alpha * loss > 30
    near = np.minimum(loss, 30 / alpha)
    # E − 1 = E_Q[(P/Q)^α − 1 − α (P/Q − 1)], so that small values keep their digits.
    weights, linear = np.where(far, 0.0, np.exp(log_q)), alpha * np.expm1(near)
    excess = np.dot(weights, np.expm1(alpha * near) - linear) + _ROUNDING_OF_TERMS * np.dot(weights, np.abs(linear))
    logarithm = math.log1p(max(0.0, float(excess)))
    if far.any():
        logarithm = float(np.logaddexp(logarithm, np.logaddexp.reduce((log_q + alpha * loss)[far])))
    return min(whole, logarithm / (alpha - 1) * (1 + _ROUNDING))


def rdp_of_event(event: Event, orders: ArrayLike) -> Floats:
    """Return the RDP curve of `event` at `orders`.

    Raises:
        UnsupportedEventError: If the event is unknown.
    """
    alpha = check_orders(orders)
    match event:
        case GaussianEvent():
            return gaussian_rdp(event.sensitivity, event.sigma, alpha)
        case LaplaceEvent():
            return laplace_rdp(event.sensitivity, event.scale, alpha)
        case RandomisedResponseEvent():
            return randomised_response_rdp(event.epsilon, event.categories, alpha)
        case SampledGaussianEvent():
            plus, minus = event.plus / event.sigma, event.minus / event.sigma
            both = {(plus, minus), (minus, plus)}
            return np.array(
                [max(_sampled_gaussian_rdp(*shifts, event.rate, float(a)) for shifts in both) for a in alpha]
            )
        case RepeatedEvent():
            # Zero times an infinite cost is zero.
            return event.count * rdp_of_event(event.event, alpha) if event.count else np.zeros_like(alpha)
        case ComposedEvent():
            return np.asarray(sum((rdp_of_event(part, alpha) for part in event.events), np.zeros_like(alpha)))
        case NonPrivateEvent():
            return np.full_like(alpha, np.inf)
        case _:
            raise UnsupportedEventError(f"No RDP curve is known for a {type(event).__name__}.")


def pure_epsilon(event: Event) -> float:
    """Return ε of `event` at δ = 0, by addition over its parts; infinite without a pure guarantee.

    Raises:
        UnsupportedEventError: If the event is unknown.
    """
    match event:
        case LaplaceEvent():
            return event.sensitivity / event.scale
        case RandomisedResponseEvent():
            return event.epsilon
        case RepeatedEvent():
            return event.count * pure_epsilon(event.event) if event.count else 0.0
        case ComposedEvent():
            return math.fsum(pure_epsilon(part) for part in event.events)
        case GaussianEvent():
            return math.inf if event.sensitivity else 0.0
        case SampledGaussianEvent():
            return math.inf if event.plus + event.minus else 0.0
        case NonPrivateEvent():
            return math.inf
        case _:
            raise UnsupportedEventError(f"No guarantee is known for a {type(event).__name__}.")


def mu_squared_bound(event: Event) -> float:
    """Return a μ² for which `event` is μ-GDP: exact for Gaussian parts, from pure ε for others, possibly infinite.

    Raises:
        UnsupportedEventError: If the event is unknown.
    """
    squares = []
    for part, count in counts(event).items():
        match part:
            case GaussianEvent():
                square = mu_squared(part)
            case SampledGaussianEvent():  # without sampling: no smaller μ bounds its trade-off curve at small errors
                square = ((part.plus + part.minus) / part.sigma) ** 2
            case _:
                square = pure_mu(pure_epsilon(part)) ** 2
        squares.append(count * square)
    return math.fsum(squares)
