"""Data-independent cost of an event and of a search over settings, and whether a reservation covers an event.

A search tries several settings on private data and publishes the best. `composed_epsilon` charges each distinct release
of all candidates. The choice may then use all releases in any way, even after the fact, because it is post-processing.
The cost accounts for the records that teachers learn from, using only public quantities. It does not cover additional
records on which a score is computed, such as a test split.
"""

import contextlib
import math
from collections.abc import Mapping

import numpy as np

from terrine.errors import SettingError
from terrine.privacy.accounting.events import (
    ComposedEvent,
    Event,
    RepeatedEvent,
    UnsupportedEventError,
    compose,
    counts,
)
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from terrine.privacy.accounting.loss_distribution import loss_delta, loss_epsilon
from terrine.privacy.accounting.renyi import convert, default_orders, mu_squared_bound, pure_epsilon, rdp_of_event

_ROUNDING = 1e-9
_MOMENTS = 8


def price(event: Event, delta: float) -> float:
    """Return the smallest ε at `delta` that can be proved for `event` from only its public description.

    Exact if every part is Gaussian. Otherwise the smallest of: the sum of pure ε; the exact ε of the Gaussian parts
    plus the pure ε of the others; the exact ε with Gaussian mechanisms instead of the others; the improved RDP
    conversion; and, if every part is Gaussian, Laplace or randomised response, the ε of privacy loss distributions
    (`loss_distribution`). Each bound holds for an event fixed before anything was released; for releases chosen one by
    one, the value is the used part of a budget (`filters`), not a guarantee.

    Raises:
        UnsupportedEventError: The event contains a mechanism that no bound covers.
        SettingError: δ outside (0, 1).
    """
    gaussian, others = _split(event)
    exact = epsilon_of(math.sqrt(gaussian), delta)
    if not others:
        return exact
    figures = [
        exact + math.fsum(pure_epsilon(part) for part in others),
        epsilon_of(math.sqrt(mu_squared_bound(event)), delta),
    ]
    alpha = default_orders()
    curve = rdp_of_event(event, alpha)
    if np.any(np.isfinite(curve)):
        figures.append(convert(alpha, curve, delta)[0])
    # An event without a guarantee has no distribution of losses.
    with contextlib.suppress(UnsupportedEventError):
        figures.append(loss_epsilon(compose(event), delta))
    return min(figures)


def total_variation(event: Event, epsilon: float, delta: float, slack: float = 0.0) -> float:
    """Return an upper bound on the total variation between the outputs of `event` for two neighbours.

    Args:
        event: The event, which is (ε, δ)-private.
        epsilon: ε.
        delta: δ.
        slack: Additional δ of inexact noise.
    """
    try:
        return loss_delta(event, 0.0, near=0.5) + slack
    except UnsupportedEventError:
        # tanh(ε/2) = (e^ε − 1)/(e^ε + 1) without overflow.
        return math.tanh(epsilon / 2) + 2 * (delta + slack) / (1 + math.exp(min(epsilon, 700.0)))


def guesses_in_hundred(variation: float) -> float:
    """Return the percentage (1 + TV)/2 of correct best guesses between two neighbours, rounded up to one decimal."""
    return min(100.0, float(math.ceil(500 * (1 + variation))) / 10)


def _split(event: Event) -> tuple[float, list[Event]]:
    """Return μ² of the Gaussian parts of `event`, and all its other parts."""
    try:
        return mu_squared(event), []
    except UnsupportedEventError:
        pass
    match event:
        case ComposedEvent():
            parts = [_split(part) for part in event.events]
            return math.fsum(mu for mu, _ in parts), [other for _, others in parts for other in others]
        case RepeatedEvent():
            mu, others = _split(event.event)
            return event.count * mu, [RepeatedEvent(other, event.count) for other in others if event.count]
        case _:
            return 0.0, [event]


def covers(reservation: Event, event: Event, delta: float) -> bool:
    """Return whether a reservation pays for `event` in every measure of an account, up to rounding."""
    reserved = counts(reservation)
    if all(count <= reserved.get(part, 0) for part, count in counts(event).items()):
        return True
    try:
        # Compared as μ²: with enough noise, ε is 0 at this δ for cheaper and costlier events alike.
        return mu_squared(event) <= mu_squared(reservation) * (1 + _ROUNDING)
    except UnsupportedEventError:
        pass
    orders = default_orders()
    return bool(
        mu_squared_bound(event) <= mu_squared_bound(reservation) * (1 + _ROUNDING)
        and np.all(rdp_of_event(event, orders) <= rdp_of_event(reservation, orders) * (1 + _ROUNDING))
        and price(event, delta) <= price(reservation, delta) * (1 + _ROUNDING)
    )


def claimed_by_moments(gamma: float, queries: int, delta: float) -> float:
    """Return the data-independent ε of LNMax that papers state, by the moments accountant of Papernot et al. (2017).

    This figure is not a guarantee. Statements print it next to the ε that holds. Each query has the moments 2γ² l (l +
    1); TTAC (Dodwadmath and Stich 2022, appendix A.3, eq. 10) uses l up to 8.

    >>> round(claimed_by_moments(0.1, 100, 1e-5), 2)     # Table 1 there: 11.75
    11.76

    Raises:
        SettingError: An argument is not a positive finite number.
    """
    if not gamma > 0 or queries < 0 or not 0 < delta < 1:
        raise SettingError(f"No claim can be computed for gamma={gamma!r}, {queries!r} queries and delta={delta!r}.")
    orders = range(1, _MOMENTS + 1)
    return min((queries * 2 * gamma**2 * order * (order + 1) - math.log(delta)) / order for order in orders)


def composed_epsilon(releases: Mapping[str, Event], delta: float) -> float:
    """Return ε at `delta` of all `releases` together; exact if all are Gaussian.

    Args:
        releases: Event of each distinct release by release ID; a release shared by several candidates counts once.
        delta: δ at which ε is computed.
    """
    return price(compose(*releases.values()), delta)
