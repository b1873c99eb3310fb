"""Interactive-GNMax against a loop over queries with a filter and a student."""

import numpy as np
import pytest

from terrine.aggregation.gnmax import ConfidentGNMax, InteractiveGNMax
from terrine.errors import InputError
from terrine.privacy.accounting.events import Event, compose, threshold_test, vote_answer
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from terrine.privacy.noise import ReplayNoise
from tests.spending import Spending

GENERATOR = np.random.default_rng(0)
HISTOGRAMS = GENERATOR.multinomial(100, [0.6, 0.2, 0.1, 0.1], size=150)
SCORES = GENERATOR.dirichlet([0.4] * 4, size=150)
PLAIN = InteractiveGNMax(threshold=60, sigma1=30, sigma2=15, surprise=40, confidence=0.7)
TEST, ANSWER = threshold_test(30.0), vote_answer(15.0)


def answered_by_a_loop(spent: Event, epsilon: float, seed: int) -> tuple[list[int], list[bool], int]:
    """Algorithm 2 as it is written, with a filter that knows round one."""
    budget = Spending(epsilon, 1e-5, mu_squared_spent=mu_squared(spent))
    noise = ReplayNoise(seed)
    outcomes = noise.gaussian(len(HISTOGRAMS), 30.0)
    labels, reinforced = [-1] * len(HISTOGRAMS), [False] * len(HISTOGRAMS)
    for query, histogram in enumerate(HISTOGRAMS):
        if not budget.affords(compose(TEST, ANSWER)):
            return labels, reinforced, query
        budget.spend(TEST)
        surprise = max(histogram[j] - 100 * SCORES[query, j] for j in range(4))
        if surprise + outcomes[query] >= 40.0:
            budget.spend(ANSWER)
            labels[query] = int(np.argmax([count + noise.gaussian((), 15.0) for count in histogram]))
        elif max(SCORES[query]) > 0.7:
            labels[query], reinforced[query] = int(np.argmax(SCORES[query])), True
    return labels, reinforced, len(HISTOGRAMS)


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 50.0])
@pytest.mark.parametrize("spent", [compose(), vote_answer(3.0)])
def test_it_answers_as_the_algorithm_of_the_paper(spent: Event, epsilon: float) -> None:
    mechanism = PLAIN.informed_by(SCORES)
    labels, reinforced, queried = answered_by_a_loop(spent, epsilon, seed=6)
    found = mechanism.answer(HISTOGRAMS, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(6), spent=spent)
    assert found.labels.tolist() == labels
    assert found.reinforced is not None
    assert found.reinforced.tolist() == reinforced
    assert found.queried == queried
    assert mu_squared(found.event) <= mu_squared(mechanism.worst_case(150, epsilon, 1e-5, spent))


def test_both_rounds_together_stay_within_one_budget() -> None:
    first = ConfidentGNMax(threshold=60.0, sigma1=30.0, sigma2=15.0).answer(
        HISTOGRAMS[:20], epsilon=2.0, delta=1e-5, noise=ReplayNoise(1)
    )
    second = PLAIN.informed_by(SCORES)
    answers = second.answer(HISTOGRAMS, epsilon=2.0, delta=1e-5, noise=ReplayNoise(2), spent=first.event)
    together = compose(first.event, answers.event)
    assert answers.answered.any()
    assert epsilon_of(mu_squared(together) ** 0.5, 1e-5) <= 2.0
    assert epsilon_of(mu_squared(compose(together, TEST, ANSWER)) ** 0.5, 1e-5) > 2.0


def test_a_round_without_anything_left_asks_nothing() -> None:
    mechanism = PLAIN.informed_by(SCORES)
    spent = vote_answer(1.0)
    found = mechanism.answer(HISTOGRAMS, epsilon=0.5, delta=1e-5, noise=ReplayNoise(2), spent=spent)
    assert found.queried == 0
    assert not found.answered.any()
    assert mu_squared(mechanism.worst_case(150, 0.5, 1e-5, spent)) == 0


@pytest.mark.parametrize(
    "scores", [np.zeros((150, 4)), np.full((150, 4), np.nan), np.full((150, 4), 0.25) * [5, -1, 0, 0], np.ones(4) / 4]
)
def test_scores_that_are_no_probabilities_are_refused(scores: np.ndarray) -> None:
    with pytest.raises(InputError, match="probabilities"):
        PLAIN.informed_by(scores)


def test_scores_of_other_queries_are_refused() -> None:
    mechanism = PLAIN.informed_by(SCORES[:10])
    with pytest.raises(InputError, match="same queries"):
        mechanism.answer(HISTOGRAMS, epsilon=1.0, delta=1e-5, noise=ReplayNoise(0))


def test_a_student_informs_one_round_and_leaves_the_mechanism_as_it_was() -> None:
    before = PLAIN.answer(HISTOGRAMS, epsilon=9.0, delta=1e-5, noise=ReplayNoise(0))
    informed = PLAIN.informed_by(SCORES).answer(HISTOGRAMS, epsilon=9.0, delta=1e-5, noise=ReplayNoise(0))
    after = PLAIN.answer(HISTOGRAMS, epsilon=9.0, delta=1e-5, noise=ReplayNoise(0))
    assert before.labels.tolist() == after.labels.tolist() != informed.labels.tolist()
    assert PLAIN.informed_by(SCORES).describe() == PLAIN.describe()
