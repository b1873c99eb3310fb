"""What an event costs, and whether a reservation pays for it: without looking at data."""

import math

import numpy as np

from terrine.privacy.accounting.events import Event, UnsupportedEventError, counts
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from terrine.privacy.accounting.renyi import default_orders, epsilon_of_event, mu_squared_bound, rdp_of_event

_ROUNDING = 1e-9


def price(event: Event, delta: float) -> float:
    """ε of `event` at `delta`, without looking at data: exact where it is Gaussian, else `renyi.epsilon_of_event`.

    It holds for an event that was fixed beforehand; for releases chosen one by one it is what they used.
    """
    try:
        return epsilon_of(math.sqrt(mu_squared(event)), delta)
    except UnsupportedEventError:
        return epsilon_of_event(event, delta)


def covers(reservation: Event, event: Event, delta: float) -> bool:
    """Whether a reservation pays for `event` in every measure that an account may be kept in, up to rounding."""
    reserved = counts(reservation)
    if all(count <= reserved.get(part, 0) for part, count in counts(event).items()):
        return True
    try:
        # Compared as μ², because below some noise ε is 0 at this δ for cheap and dear events alike.
        return mu_squared(event) <= mu_squared(reservation) * (1 + _ROUNDING)
    except UnsupportedEventError:
        pass
    orders = default_orders()
    return bool(
        mu_squared_bound(event) <= mu_squared_bound(reservation) * (1 + _ROUNDING)
        and np.all(rdp_of_event(event, orders) <= rdp_of_event(reservation, orders) * (1 + _ROUNDING))
        and price(event, delta) <= price(reservation, delta) * (1 + _ROUNDING)
    )
