"""A publishable data-dependent ε: smooth sensitivity and the cost of release (Papernot et al. 2018, Appendix B).

A data-dependent RDP value is a function of the votes and must not be published directly. At one fixed order α it is
released with Gaussian noise scaled to its *smooth* sensitivity,

    value + SS_β · σ_ss · N(0, 1),   SS_β = max_d e^(−βd) LS_d,   1 < α < 1/(2β),

and this release itself has an RDP cost, which is added before the conversion to ε (Nissim, Raskhodnikova & Smith 2007).

**That cost.** On neighbouring votes the release is N(f, σ_ss² SS²) and N(f', σ_ss² SS'²) with e^(−β) ≤ r = SS'/SS ≤ e^β
and |f − f'| ≤ min(SS, SS'). With v = 1 − α + α r² the divergence of the first from the second is at most (Gil, Alajaji
& Linder 2013)

    α min(1, r)² / (2 σ_ss² v)  +  (α ln r − ½ ln v) / (α − 1)                        at every order with v > 0.

Both terms fall up to r = 1, where the second is 0. Beyond it the first falls on, and the second rises to its value at
e^β, which is below that at e^(−β): the derivative of the difference with respect to x = e^(2β) is
(α − ½)(1/(x − α(α − 1)(x − 1)²) − 1/x) ≥ 0. So the supremum is at r = e^(−β), and votes that attain it exist:

    α e^(−2β) / (2 σ_ss² (1 − α(1 − e^(−2β))))  −  (αβ + ½ ln(1 − α(1 − e^(−2β)))) / (α − 1).

*Theorem 23 of Papernot et al. 2018* has α e^(2β)/σ_ss² instead of the first term, without v. That is too small once
2αβ is much above a half: for β = 0.4/α, σ_ss = 8 and α = 21 it gives 0.40, but histograms with a cost of 0.74 exist.

Formal guarantee of `release`: if α, β, σ_ss and δ were fixed without looking at the votes, the weights of the queries
are public (which were answered, not how likely that was), and C5 and C6 hold at α, then the released figure has the
stated cost. A figure whose parameters were optimised on the votes (`optimised`) shows what sanitising *would* cost
and must be kept as private as the votes. So must the mean, the standard deviation and SS of any `SanitisedEpsilon`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.local_sensitivity import AnswerPrice
from terrine.privacy.accounting.renyi import Conversion, convert

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SanitisedEpsilon:
    """Distribution of a sanitised ε, and its parameters. Every field except the parameters is private.

    Args:
        mean: ε before the noise, including the cost of releasing it.
        standard_deviation: Standard deviation of the noise, SS · σ_ss.
        order: RDP order α.
        beta: Smoothing β < 1/(2α).
        sigma_ss: Noise σ_ss in units of the smooth sensitivity.
        smooth_sensitivity: SS_β.
        release_rdp: RDP cost at α of releasing the figure.
    """

    mean: float
    standard_deviation: float
    order: float
    beta: float
    sigma_ss: float
    smooth_sensitivity: float
    release_rdp: float


def smooth_sensitivity(local_sensitivity: ArrayLike, beta: float) -> float:
    """Return SS_β = max_d e^(−βd) LS_d, from LS_d at d = 0, 1, … [distances]."""
    local = np.asarray(local_sensitivity, dtype=np.float64)
    if local.ndim != 1 or not local.size or not np.all(local >= 0):
        raise InputError("Local sensitivities must be a list of numbers ≥ 0, one per distance.")
    if not beta >= 0:
        raise SettingError(f"beta must be a number ≥ 0, got {beta!r}.")
    return float(np.max(np.exp(-beta * np.arange(local.size)) * local))


def release_rdp(order: float, beta: float, sigma_ss: float) -> float:
    """Return the RDP at `order` of releasing a figure with Gaussian noise of σ_ss times its β-smooth sensitivity.

    Raises:
        SettingError: If parameters are outside 1 < order < 1/(2β), β ≥ 0, σ_ss > 0.
    """
    _check(order, beta, sigma_ss)
    width = -order * beta - 0.5 * math.log(_narrowed(order, beta))
    return _weight(order, beta) / sigma_ss**2 + width / (order - 1)


def _narrowed(order: float, beta: float) -> float:
    """Return v at r = e^(−β), see the module docstring."""
    return 1 + order * math.expm1(-2 * beta)


def _weight(order: float, beta: float) -> float:
    """Return the numerator of the first term of the cost, over σ_ss²."""
    return order * math.exp(-2 * beta) / (2 * _narrowed(order, beta))


def sanitised(
    rdp: float,
    local_sensitivity: ArrayLike,
    delta: float,
    *,
    order: float,
    beta: float,
    sigma_ss: float,
    conversion: Conversion = "improved",
) -> SanitisedEpsilon:
    """Return the sanitised ε at the given parameters.

    Args:
        rdp: Data-dependent RDP of everything released, at `order`.
        local_sensitivity: Local sensitivity LS_d of the RDP value at distances d = 0, 1, …, [distances]
            (`local_sensitivity`).
        delta: δ at which ε is computed.
        order: RDP order α.
        beta: Smoothing β < 1/(2α).
        sigma_ss: Noise in units of the smooth sensitivity.
        conversion: Conversion of RDP to ε, see `renyi`.

    Raises:
        SettingError: Not 1 < order < 1/(2β), β ≥ 0 and σ_ss > 0, or δ is outside (0, 1).
    """
    cost = release_rdp(order, beta, sigma_ss)
    scale = smooth_sensitivity(local_sensitivity, beta)
    mean, _ = convert([order], [rdp + cost], delta, conversion)
    return SanitisedEpsilon(mean, scale * sigma_ss, float(order), float(beta), float(sigma_ss), scale, cost)


def optimised(
    rdp: float,
    local_sensitivity: ArrayLike,
    delta: float,
    *,
    order: float,
    beta: float | None = None,
    sigma_ss: float | None = None,
    conversion: Conversion = "improved",
) -> SanitisedEpsilon:
    """Return the sanitised ε with the smallest mean plus two standard deviations: **private**.

    β is chosen among 0.01/α, 0.02/α, … 0.49/α. The best σ_ss for it is (w/SS)^(1/3), where w/σ_ss² is the part of the
    release cost that depends on σ_ss. Parameters passed by the caller are not optimised. If there is nothing to protect
    (SS = 0), σ_ss is infinite and the release costs nothing. Other arguments and errors as for `sanitised`.
    """
    candidates = np.arange(1, 50) * 0.01 / order if beta is None else np.array([beta])
    figures = []
    for candidate in candidates:
        chosen = sigma_ss
        if chosen is None:
            scale = smooth_sensitivity(local_sensitivity, candidate)
            chosen = math.inf if scale == 0 else (_weight(order, candidate) / scale) ** (1 / 3)
        if math.isinf(chosen):
            # A constant needs no noise, so releasing it costs nothing.
            mean, _ = convert([order], [rdp], delta, conversion)
            return SanitisedEpsilon(mean, 0.0, float(order), float(candidate), chosen, 0.0, 0.0)
        figures.append(
            sanitised(
                rdp,
                local_sensitivity,
                delta,
                order=order,
                beta=float(candidate),
                sigma_ss=chosen,
                conversion=conversion,
            )
        )
    return min(figures, key=lambda figure: figure.mean + 2 * figure.standard_deviation)


def release(figure: SanitisedEpsilon, standard_normal: Callable[[], float]) -> float:
    """Draw a sanitised ε: the number that may be published under the conditions in the module docstring.

    Each draw costs the stated amount again. Negative draws are clipped to 0, which is post-processing.

    Args:
        figure: From `sanitised`, with parameters fixed in advance.
        standard_normal: Draws N(0, 1) from a cryptographically secure source.
    """
    return max(0.0, figure.mean + figure.standard_deviation * standard_normal())


def restricted_order(epsilons: ArrayLike, orders: ArrayLike, sigma: float, classes: int) -> float:
    """Return the order with the smallest ε among those at which conditions C5 and C6 hold.

    Args:
        epsilons: ε that the curve to be sanitised gives at each order [orders].
        orders: RDP orders [orders].
        sigma: Standard deviation of the answers' noise, in votes.
        classes: Number of classes.

    Raises:
        SettingError: Conditions C5 and C6 hold at none of the orders.
    """
    ranked = np.asarray(orders, dtype=np.float64)[np.argsort(np.asarray(epsilons, dtype=np.float64), kind="stable")]
    ceiling = math.inf
    for order in map(float, ranked):
        # The conditions fail from some order on, so orders above one that failed need not be tried.
        if order >= ceiling:
            continue
        if all(AnswerPrice(sigma, classes, order).conditions()):
            return order
        ceiling = order
    raise SettingError(
        f"Conditions C5 and C6 of the smooth sensitivity hold at none of the orders for sigma={sigma:g} and "
        f"{classes} classes: include smaller orders or use more noise."
    )


def _check(order: float, beta: float, sigma_ss: float) -> None:
    if not sigma_ss > 0:
        raise SettingError(f"sigma_ss must be a positive number, got {sigma_ss!r}.")
    if not beta >= 0:
        raise SettingError(f"beta must be a number ≥ 0, got {beta!r}.")
    if not (1 < order < math.inf and 2 * order * beta < 1):
        raise SettingError(
            f"The order must be above 1 and below 1/(2·beta), but order={order:g} with beta={beta:g}: "
            "choose a smaller beta."
        )
