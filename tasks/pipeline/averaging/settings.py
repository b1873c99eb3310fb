"""How a run's averages are made private, and what they will cost: from parameters alone."""

from __future__ import annotations

from tasks.config.params import Params
from terrine.privacy.accounting.events import Event, NonPrivateEvent, compose
from terrine.teachers.averaging.private import PrivateAveraging, calibrated


def private_averaging(params: Params) -> PrivateAveraging | None:
    """Return how the averages are made private, with the noise that the share of the budget buys; None without any."""
    teachers, aggregation = params.teachers, params.aggregation
    if not teachers.releases_averages:
        return None
    return calibrated(teachers, epsilon=aggregation.epsilon, delta=aggregation.delta)


def planned_event(params: Params) -> Event:
    """Return what the averages of a run will cost; nothing where nothing is averaged."""
    if params.teachers.unprotected:
        return NonPrivateEvent()
    averaging = private_averaging(params)
    return compose() if averaging is None else averaging.whole_event()
