"""Rounds against the rounds made one by one by hand, and what an adviser may and may not do."""

import math

import numpy as np
import pytest

from terrine.aggregation.adaptive_queries import NEVER, Advice, Rounds, answer_in_rounds, in_order, most_uncertain
from terrine.aggregation.gnmax import ConfidentGNMax, GaussianHistogram, GNMax, InteractiveGNMax
from terrine.aggregation.lnmax import LNMax
from terrine.aggregation.mechanism import NOTHING, Answers, Mechanism
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import compose
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise

GENERATOR = np.random.default_rng(0)
QUERIES = 120
HISTOGRAMS = GENERATOR.multinomial(100, [0.6, 0.2, 0.1, 0.1], size=QUERIES)
SCORES = GENERATOR.dirichlet([0.4] * 4, size=QUERIES)
MECHANISMS: list[Mechanism] = [
    GaussianHistogram(sigma=40.0),
    GNMax(sigma=40.0),
    LNMax(scale=40.0),
    ConfidentGNMax(threshold=60.0, sigma1=60.0, sigma2=30.0),
    InteractiveGNMax(threshold=60.0, sigma1=60.0, sigma2=30.0, surprise=40.0, confidence=0.7),
]


def test_the_most_uncertain_queries_have_the_largest_entropy() -> None:
    asked = GENERATOR.random(QUERIES) < 0.3
    released = Rounds(
        Answers(asked, np.zeros(QUERIES, np.int64), None, NOTHING, int(asked.sum())), np.where(asked, 0, NEVER)
    )
    entropies = {
        query: -sum(p * np.log(p) for p in SCORES[query] if p > 0) for query in range(QUERIES) if not asked[query]
    }
    expected = sorted(entropies, key=lambda query: -entropies[query])
    assert most_uncertain(released, SCORES).order.tolist() == expected
    assert most_uncertain(released, None).order.tolist() == list(entropies)


def backwards(released: Rounds) -> Advice:
    """The last queries first, and scores from the first round on."""
    return Advice(np.flatnonzero(released.round == NEVER)[::-1], SCORES if (released.round >= 0).any() else None)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.mechanism)
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 100.0])
def test_one_round_in_order_is_the_mechanism_itself(mechanism: Mechanism, epsilon: float) -> None:
    plain = mechanism.answer(HISTOGRAMS, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(3))
    found = answer_in_rounds(
        mechanism, HISTOGRAMS, rounds=1, adviser=in_order, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(3)
    )
    assert found.answers.labels.tolist() == plain.labels.tolist()
    assert found.answers.event == plain.event or found.answers.queried == 0
    assert (found.round[: plain.queried] == 0).all()
    assert (found.round[plain.queried :] == NEVER).all()
    if plain.histograms is not None and plain.queried:
        assert found.answers.histograms is not None
        np.testing.assert_array_equal(found.answers.histograms, plain.histograms)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.mechanism)
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 100.0])
def test_rounds_are_what_each_of_them_would_be_by_hand(mechanism: Mechanism, epsilon: float) -> None:
    noise, rounds = ReplayNoise(5), 3
    labels, turns, event, left = [-1] * QUERIES, [NEVER] * QUERIES, compose(), list(range(QUERIES))[::-1]
    for number in range(rounds):
        share = len(left)
        if number < rounds - 1:
            share = math.ceil(mechanism.certain(len(left), epsilon, 1e-5, event) / (rounds - number))
        if not share:
            break
        taken = left[:share]
        turn = mechanism
        if number and isinstance(mechanism, InteractiveGNMax):
            turn = mechanism.informed_by(SCORES[taken])
        answers = turn.answer(HISTOGRAMS[taken], epsilon=epsilon, delta=1e-5, noise=noise, spent=event)
        for place, query in enumerate(taken[: answers.queried]):
            labels[query], turns[query] = int(answers.labels[place]), number
        event, left = compose(event, answers.event), [query for query in left if turns[query] == NEVER]
    found = answer_in_rounds(
        mechanism, HISTOGRAMS, rounds=rounds, adviser=backwards, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(5)
    )
    assert found.answers.labels.tolist() == labels
    assert found.round.tolist() == turns
    assert found.answers.event == event
    assert found.answers.queried == sum(turn != NEVER for turn in turns)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.mechanism)
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 100.0])
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_all_rounds_together_cost_at_most_what_is_reserved_and_that_is_within_the_budget(
    mechanism: Mechanism, epsilon: float, rounds: int
) -> None:
    found = answer_in_rounds(
        mechanism, HISTOGRAMS, rounds=rounds, adviser=backwards, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(1)
    )
    reserved = mechanism.worst_case(QUERIES, epsilon, 1e-5)
    assert price(found.answers.event, 1e-5) <= price(reserved, 1e-5) <= epsilon


@pytest.mark.parametrize("mechanism", MECHANISMS[:2], ids=lambda mechanism: mechanism.mechanism)
def test_rounds_buy_as_many_answers_as_one_round_does(mechanism: Mechanism) -> None:
    queried = [
        answer_in_rounds(
            mechanism, HISTOGRAMS, rounds=rounds, adviser=backwards, epsilon=1.0, delta=1e-5, noise=ReplayNoise(1)
        ).answers.queried
        for rounds in (1, 4)
    ]
    assert queried[0] == queried[1] < QUERIES


def test_a_budget_that_ends_in_round_two_stops_there() -> None:
    passing = {"threshold": 0.0, "surprise": -100.0}
    mechanism = InteractiveGNMax(**passing, sigma1=60.0, sigma2=30.0, confidence=0.7)
    found = answer_in_rounds(
        mechanism, HISTOGRAMS, rounds=2, adviser=backwards, epsilon=1.0, delta=1e-5, noise=ReplayNoise(1)
    )
    assert set(found.round) == {NEVER, 0, 1}
    again = mechanism.informed_by(SCORES).answer(
        HISTOGRAMS, epsilon=1.0, delta=1e-5, noise=ReplayNoise(1), spent=found.answers.event
    )
    assert again.queried == 0


def test_the_adviser_sees_released_answers_and_nothing_else() -> None:
    seen: list[Rounds] = []

    def adviser(released: Rounds) -> Advice:
        seen.append(released)
        return in_order(released)

    answer_in_rounds(
        GNMax(sigma=40.0), HISTOGRAMS, rounds=2, adviser=adviser, epsilon=1.0, delta=1e-5, noise=ReplayNoise(1)
    )
    assert not seen[0].answers.answered.any()
    assert seen[1].answers.answered.sum() == (seen[1].round == 0).sum() > 0
    assert (seen[1].answers.labels[seen[1].round == NEVER] == -1).all()


@pytest.mark.parametrize(
    "order",
    [np.array([0, 0, *range(2, QUERIES)]), np.array([QUERIES, *range(1, QUERIES)]), np.array([0, 1]), np.array(7)],
)
def test_advice_that_is_none_is_refused_before_anything_is_drawn(order: np.ndarray) -> None:
    noise = ReplayNoise(1)
    with pytest.raises(InputError, match="not asked yet"):
        answer_in_rounds(
            GNMax(sigma=40.0),
            HISTOGRAMS,
            rounds=2,
            adviser=lambda _: Advice(order),
            epsilon=9.0,
            delta=1e-5,
            noise=noise,
        )
    assert noise.gaussian((), 1.0) == ReplayNoise(1).gaussian((), 1.0)


def test_no_round_at_all_is_refused() -> None:
    with pytest.raises(SettingError, match="at least one round"):
        answer_in_rounds(
            GNMax(sigma=40.0), HISTOGRAMS, rounds=0, adviser=in_order, epsilon=9.0, delta=1e-5, noise=ReplayNoise(1)
        )
