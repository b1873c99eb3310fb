"""GNMax and the Gaussian histogram: a fixed number of answers, known before the first."""

import numpy as np
import pytest

from terrine.aggregation.gnmax import GaussianHistogram, GNMax
from terrine.privacy.accounting.events import RepeatedEvent, vote_answer
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from terrine.privacy.noise import ReplayNoise
from tests.spending import Spending

HISTOGRAMS = np.random.default_rng(0).multinomial(100, np.full(6, 1 / 6), size=120)


def answered_by_a_loop(sigma: float, epsilon: float, seed: int) -> tuple[list[int], list[np.ndarray]]:
    """One query after the other, each paid for before its noise is drawn."""
    budget, noise = Spending(epsilon, 1e-5), ReplayNoise(seed)
    labels, noisy = [], []
    for histogram in HISTOGRAMS:
        if not budget.affords(vote_answer(sigma)):
            break
        budget.spend(vote_answer(sigma))
        noisy.append([count + noise.gaussian((), sigma) for count in histogram])
        labels.append(int(np.argmax(noisy[-1])))
    return labels, noisy


@pytest.mark.parametrize(("sigma", "epsilon"), [(20.0, 1.0), (20.0, 0.1), (40.0, 2.0), (500.0, 1.0)])
def test_gnmax_answers_as_a_loop_over_queries_does(sigma: float, epsilon: float) -> None:
    labels, _ = answered_by_a_loop(sigma, epsilon, seed=3)
    found = GNMax(sigma=sigma).answer(HISTOGRAMS, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(3))
    assert found.queried == found.answered.sum() == len(labels)
    assert found.labels.tolist() == labels + [-1] * (len(HISTOGRAMS) - len(labels))
    assert found.histograms is None
    assert found.event == RepeatedEvent(vote_answer(sigma), len(labels))


@pytest.mark.parametrize(("sigma", "epsilon"), [(20.0, 1.0), (500.0, 1.0)])
def test_the_histogram_releases_what_gnmax_takes_the_argmax_of(sigma: float, epsilon: float) -> None:
    labels, noisy = answered_by_a_loop(sigma, epsilon, seed=4)
    found = GaussianHistogram(sigma=sigma).answer(HISTOGRAMS, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(4))
    assert found.histograms is not None
    np.testing.assert_array_equal(found.histograms[: len(noisy)], noisy)
    assert np.isnan(found.histograms[len(noisy) :]).all()
    assert found.labels[: len(labels)].tolist() == labels


@pytest.mark.parametrize("mechanism", [GNMax(sigma=30.0), GaussianHistogram(sigma=30.0)])
def test_what_is_spent_is_what_was_reserved_and_one_more_would_not_fit(mechanism: GNMax | GaussianHistogram) -> None:
    spent = mechanism.answer(HISTOGRAMS, epsilon=1.0, delta=1e-5, noise=ReplayNoise(0)).event
    assert spent == mechanism.worst_case(len(HISTOGRAMS), 1.0, 1e-5)
    assert isinstance(spent, RepeatedEvent)
    assert epsilon_of(mu_squared(spent) ** 0.5, 1e-5) <= 1.0
    assert epsilon_of(mu_squared(RepeatedEvent(spent.event, spent.count + 1)) ** 0.5, 1e-5) > 1.0
