"""LNMax: gated by the best data-independent bound."""

import numpy as np
import pytest

from terrine.aggregation.lnmax import LNMax
from terrine.privacy.accounting.events import LaplaceEvent, RepeatedEvent
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise

HISTOGRAMS = np.random.default_rng(0).multinomial(100, np.full(5, 0.2), size=200)


@pytest.mark.parametrize(("scale", "epsilon"), [(10.0, 0.1), (20.0, 1.0), (20.0, 3.0), (2000.0, 1.0)])
def test_it_answers_as_a_loop_over_queries_does(scale: float, epsilon: float) -> None:
    noise, labels = ReplayNoise(7), []
    for histogram in HISTOGRAMS:
        after = RepeatedEvent(LaplaceEvent(1.0, scale), 2 * len(labels) + 2)
        if price(after, 1e-5) > epsilon:
            break
        labels.append(int(np.argmax([count + noise.laplace((), scale) for count in histogram])))
    found = LNMax(scale=scale).answer(HISTOGRAMS, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(7))
    assert found.labels.tolist() == labels + [-1] * (len(HISTOGRAMS) - len(labels))
    assert found.event == RepeatedEvent(LaplaceEvent(1.0, scale), 2 * len(labels))
    assert found.event == LNMax(scale=scale).worst_case(len(HISTOGRAMS), epsilon, 1e-5)


def test_many_answers_cost_less_than_the_sum_of_their_pure_prices() -> None:
    event = LNMax(scale=200.0).worst_case(10**6, 2.0, 1e-5)
    assert isinstance(event, RepeatedEvent)
    assert event.count / 200.0 > 2.0
