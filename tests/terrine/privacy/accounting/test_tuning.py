"""The price of a search."""

import math

import pytest

from terrine.privacy.accounting.events import (
    RepeatedEvent,
    compose,
    threshold_test,
    vote_answer,
)
from terrine.privacy.accounting.pricing import composed_epsilon, price

DELTA = 1e-5
CANDIDATES = [
    RepeatedEvent(vote_answer(40.0), 100),
    RepeatedEvent(vote_answer(25.0), 60),
    compose(RepeatedEvent(threshold_test(120.0), 200), RepeatedEvent(vote_answer(40.0), 80)),
]


def test_releases_compose_exactly_and_cost_less_than_the_sum_of_their_epsilons():
    releases = {str(number): event for number, event in enumerate(CANDIDATES)}
    mu_squared = 100 * 2 / 40**2 + 60 * 2 / 25**2 + 200 / 120**2 + 80 * 2 / 40**2
    epsilon = composed_epsilon(releases, DELTA)
    normal = lambda x: math.erfc(-x / math.sqrt(2)) / 2  # noqa: E731
    mu = math.sqrt(mu_squared)
    delta = normal(-epsilon / mu + mu / 2) - math.exp(epsilon) * normal(-epsilon / mu - mu / 2)
    assert delta == pytest.approx(DELTA, rel=1e-6)
    singles = [price(event, DELTA) for event in CANDIDATES]
    assert max(singles) < epsilon < sum(singles)
