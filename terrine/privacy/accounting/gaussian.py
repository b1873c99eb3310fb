"""The exact cost of Gaussian mechanisms, and a filter that stops before a budget is exceeded.

A Gaussian mechanism with L2 sensitivity s and noise sigma is μ-GDP with μ = s/sigma, and adaptive composition adds the
squares of μ exactly. No bound is involved, so this figure may decide when to stop answering and may be published. At a
given δ the guarantee (ε, δ) of μ solves

    δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)

(Balle & Wang 2018, Theorem 8; Dong, Roth & Su 2022, Corollary 2.13). The composition, including its length, may be
chosen adaptively as long as μ² stays below a limit fixed in advance: the Gaussian filter of Smith & Thakurta (2022).

All quantities in this module are public: none depends on private data. All rounding is upwards: a printed ε is never
smaller than the true one.

    >>> spent = compose(RepeatedEvent(threshold_test(150.0), 640), RepeatedEvent(vote_answer(40.0), 286))
    >>> round_up(epsilon_of(math.sqrt(mu_squared(spent)), delta=1e-5), digits=6)
    2.542603
"""

import math
from decimal import ROUND_CEILING, Decimal

import scipy  # loads submodules on first use: reading settings needs none of them

from terrine.errors import SettingError
from terrine.privacy.accounting.events import ComposedEvent, Event, GaussianEvent, RepeatedEvent, UnsupportedEventError

_ROOT_TOLERANCE = 4 * 2.0**-52
# At least ten times the rounding error of the formulas below for any μ ≥ 1e-8 (compared with 60-digit arithmetic).
_MARGIN = 1e-12


def mu_squared(event: Event) -> float:
    """Return the exact μ² of a composition of Gaussian mechanisms.

    Raises:
        UnsupportedEventError: If a part of the event is not Gaussian; use `pricing.price` for such events.
    """
    match event:
        case GaussianEvent():
            return (event.sensitivity / event.sigma) ** 2
        case RepeatedEvent():
            return event.count * mu_squared(event.event) if event.count else 0.0
        case ComposedEvent():
            return math.fsum(mu_squared(part) for part in event.events)
        case _:
            raise UnsupportedEventError(
                f"A {type(event).__name__} is not a Gaussian mechanism: it has no exact μ. "
                "Price it with terrine.privacy.accounting.pricing.price."
            )


def log_delta_of(mu: float, epsilon: float) -> float:
    """Return log δ of a μ-GDP mechanism at `epsilon`, even if δ underflows."""
    _require_mu(mu)
    _require_epsilon(epsilon)
    if mu == 0 or epsilon == math.inf:
        return -math.inf
    if mu == math.inf:
        return 0.0
    near = epsilon / mu - mu / 2
    far = epsilon / mu + mu / 2
    if near > 0:
        # e^ε φ(far) = φ(near), so both terms share the factor exp(−near²/2), which stays outside the subtraction.
        tails = scipy.special.erfcx(near / math.sqrt(2)) - scipy.special.erfcx(far / math.sqrt(2))
        return -near * near / 2 + math.log(tails / 2) if tails > 0 else -math.inf
    if mu <= 1:
        middle = (scipy.special.erf(-near / math.sqrt(2)) + scipy.special.erf(far / math.sqrt(2))) / 2
        return math.log(middle - math.expm1(epsilon) * math.exp(scipy.special.log_ndtr(-far)))
    return float(
        scipy.special.log_ndtr(-near)
        + math.log1p(-math.exp(epsilon + scipy.special.log_ndtr(-far) - scipy.special.log_ndtr(-near)))
    )


def delta_of(mu: float, epsilon: float) -> float:
    """Return the smallest δ for which a μ-GDP mechanism is (`epsilon`, δ)-differentially private; μ and ε are ≥ 0."""
    return min(1.0, math.exp(log_delta_of(mu, epsilon)))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε for which a μ-GDP mechanism is (ε, `delta`)-private, rounded up by about 1e-12.

    Raises:
        SettingError: If δ is outside (0, 1) or μ is negative.
    """
    _require_mu(mu)
    target = _log_of(delta)
    if mu == math.inf:
        return math.inf
    if mu == 0 or log_delta_of(mu, 0.0) <= target:
        return 0.0
    # The tail bound δ ≤ exp(−(ε/μ − μ/2)²/2) brackets the root from above.
    ceiling = mu * mu / 2 + mu * math.sqrt(-2 * target)
    root = scipy.optimize.brentq(
        lambda epsilon: log_delta_of(mu, epsilon) - target, 0.0, ceiling, xtol=1e-300, rtol=_ROOT_TOLERANCE, maxiter=500
    )
    return float(root) * (1 + _margin(mu))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ that is (`epsilon`, `delta`)-private, rounded down by about 1e-12.

    Raises:
        SettingError: If ε is negative or infinite, or δ is outside (0, 1).
    """
    _require_epsilon(epsilon)
    target = _log_of(delta)
    if epsilon == math.inf:
        raise SettingError("A budget needs a finite epsilon.")
    low, high = 1e-8, 1.0
    while log_delta_of(high, epsilon) <= target:
        high *= 2
    while log_delta_of(low, epsilon) > target:
        low /= 16
        if low < 1e-150:
            raise SettingError(f"No noise fits epsilon={epsilon:g} at delta={delta:g}: choose a larger budget.")
    root = scipy.optimize.brentq(
        lambda mu: log_delta_of(mu, epsilon) - target, low, high, xtol=1e-300, rtol=_ROOT_TOLERANCE, maxiter=500
    )
    return float(root) * (1 - _margin(float(root)))


def pure_mu(epsilon: float) -> float:
    """Return the smallest μ for which every ε-DP mechanism is μ-GDP: 2 Φ⁻¹(e^ε/(1 + e^ε)), rounded up.

    An ε-DP mechanism's trade-off curve is on or above the two segments from (0, 1) over the kink (a, a), with
    a = 1/(1 + e^ε), to (1, 0) (Wasserman & Zhou 2010). The curve G_μ(x) = Φ(Φ⁻¹(1 − x) − μ) of this μ has the same ends
    and the same kink: Φ⁻¹(1 − a) = μ/2, so G_μ(a) = Φ(−μ/2) = a. It is convex, so between two adjacent points it is
    below their chord, which is the segment. Since the curve of the Gaussian mechanism is lower, a Gaussian mechanism
    of this μ can be post-processed into the ε-DP one (Blackwell 1953; Dong, Roth & Su 2022, Theorem 2). Results on
    adaptive sequences of Gaussian mechanisms therefore also hold if they contain such a mechanism.
    """
    _require_epsilon(epsilon)
    if epsilon == math.inf:
        return math.inf
    # −2 Φ⁻¹(1/(1 + e^ε)), from the logarithm: for a large ε the argument itself is 0.
    logarithm = -epsilon - math.log1p(math.exp(-epsilon))
    return max(0.0, -2 * float(scipy.special.ndtri_exp(logarithm)) * (1 + _MARGIN))


def round_up(epsilon: float, digits: int = 4) -> float:
    """Return `epsilon` rounded up to this number of decimals, for printing."""
    if not math.isfinite(epsilon):
        return epsilon
    return float(Decimal(repr(float(epsilon))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING))


class GaussianFilter:
    """Remaining budget for adaptively chosen Gaussian events, in any order.

    Formal guarantee: if every event is charged before its noise is drawn, and only if the filter `affords` it, all
    events together are (`epsilon`, `delta`)-differentially private, however they are chosen from earlier releases,
    because μ² never exceeds the limit fixed at the start (Smith & Thakurta 2022, Theorem 1).
    """

    def __init__(self, epsilon: float, delta: float, *, mu_squared_spent: float = 0.0) -> None:
        self.mu_squared_limit = mu_of(epsilon, delta) ** 2
        _require_mu(mu_squared_spent)
        self.mu_squared_spent = float(mu_squared_spent)

    @property
    def mu_squared_left(self) -> float:
        """Remaining μ² of the budget, or 0 if it is used up."""
        return max(0.0, self.mu_squared_limit - self.mu_squared_spent)

    def affords(self, event: Event) -> bool:
        """Return whether `event` still fits."""
        cost = mu_squared(event)
        # Rounded up, so that a long sum of small costs cannot drift below the true total.
        after = math.nextafter(self.mu_squared_spent + cost, math.inf) if cost > 0 else self.mu_squared_spent
        return after <= self.mu_squared_limit


def _margin(mu: float) -> float:
    return _MARGIN * (1 + 1e-3 / mu)


def _log_of(delta: float) -> float:
    if not 0 < delta < 1:
        raise SettingError(f"delta must lie strictly between 0 and 1, got {delta!r}.")
    return math.log(delta)


def _require_mu(mu: float) -> None:
    if not mu >= 0:
        raise SettingError(f"mu must be a number ≥ 0, got {mu!r}.")


def _require_epsilon(epsilon: float) -> None:
    if not epsilon >= 0:
        raise SettingError(f"epsilon must be a number ≥ 0, got {epsilon!r}.")
