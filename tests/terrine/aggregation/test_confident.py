"""Confident-GNMax against a loop over queries with a filter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrine.aggregation.gnmax import ConfidentGNMax
from terrine.aggregation.mechanism import affordable_tests, worst_case_of_tests
from terrine.privacy.accounting.events import RepeatedEvent, compose, threshold_test, vote_answer
from terrine.privacy.accounting.gaussian import GaussianFilter, epsilon_of, mu_squared
from terrine.privacy.noise import ReplayNoise
from tests.spending import Spending

HISTOGRAMS = np.random.default_rng(0).multinomial(100, [0.6, 0.2, 0.1, 0.1], size=150)


def answered_by_a_loop(mechanism: ConfidentGNMax, epsilon: float, seed: int) -> tuple[list[int], int]:
    """One query after the other: tested if test and answer can be paid, answered if it passes."""
    budget, noise = Spending(epsilon, 1e-5), ReplayNoise(seed)
    test, answer = threshold_test(mechanism.sigma1), vote_answer(mechanism.sigma2)
    outcomes = noise.gaussian(len(HISTOGRAMS), mechanism.sigma1)
    labels = [-1] * len(HISTOGRAMS)
    for query, histogram in enumerate(HISTOGRAMS):
        if not budget.affords(compose(test, answer)):
            return labels, query
        budget.spend(test)
        if max(histogram) + outcomes[query] >= mechanism.threshold:
            budget.spend(answer)
            labels[query] = int(np.argmax([count + noise.gaussian((), mechanism.sigma2) for count in histogram]))
    return labels, len(HISTOGRAMS)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 50.0])
@pytest.mark.parametrize("threshold", [-1e6, 60.0, 1e6])
def test_it_answers_as_a_loop_over_queries_does(epsilon: float, threshold: float) -> None:
    mechanism = ConfidentGNMax(threshold=threshold, sigma1=30.0, sigma2=15.0)
    labels, queried = answered_by_a_loop(mechanism, epsilon, seed=5)
    found = mechanism.answer(HISTOGRAMS, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(5))
    assert found.labels.tolist() == labels
    assert found.queried == queried
    assert found.answered.tolist() == [label >= 0 for label in labels]
    tests, answers = RepeatedEvent(threshold_test(30.0), queried), RepeatedEvent(vote_answer(15.0), sum(found.answered))
    assert found.event == compose(tests, answers)


@settings(deadline=None, max_examples=200)
@given(
    passed=st.lists(st.booleans(), max_size=60),
    sigma1=st.floats(0.5, 300),
    sigma2=st.floats(0.5, 300),
    epsilon=st.floats(0.01, 20),
    delta=st.sampled_from([1e-9, 1e-5, 0.01]),
)
def test_no_order_of_outcomes_passes_the_budget_or_the_reservation(
    passed: list[bool], sigma1: float, sigma2: float, epsilon: float, delta: float
) -> None:
    test, answer = threshold_test(sigma1), vote_answer(sigma2)
    outcomes = np.array(passed, dtype=bool)
    queried = affordable_tests(outcomes, test, answer, GaussianFilter(epsilon, delta))
    answered = int(outcomes[:queried].sum())
    spent = compose(RepeatedEvent(test, queried), RepeatedEvent(answer, answered))
    reserved = worst_case_of_tests(len(passed), test, answer, GaussianFilter(epsilon, delta))
    assert mu_squared(spent) <= mu_squared(reserved)
    assert epsilon_of(mu_squared(reserved) ** 0.5, delta) <= epsilon
    if queried < len(passed):
        budget = GaussianFilter(epsilon, delta, mu_squared_spent=mu_squared(spent) * (1 + 1e-9))
        assert not budget.affords(compose(test, answer))


def test_the_setting_of_the_paper_costs_the_exact_figure() -> None:
    histograms = np.zeros((640, 10), dtype=np.int64)
    histograms[:286, 0] = 10**7
    histograms[286:] = 10**6
    found = ConfidentGNMax(threshold=5e6, sigma1=150.0, sigma2=40.0).answer(
        histograms, epsilon=3.0, delta=1e-5, noise=ReplayNoise(0)
    )
    assert (found.queried, found.answered.sum()) == (640, 286)
    assert epsilon_of(mu_squared(found.event) ** 0.5, 1e-5) == pytest.approx(2.5426, abs=5e-5)
