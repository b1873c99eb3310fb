"""The two prices of a search."""

import math

import pytest

from terrine.errors import SettingError
from terrine.privacy.accounting.events import (
    LaplaceEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
    compose,
    threshold_test,
    vote_answer,
)
from terrine.privacy.accounting.pricing import composed_epsilon, price, repeat_and_select_epsilon
from terrine.privacy.accounting.renyi import default_orders

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


@pytest.mark.parametrize("mean", [None, 1.0, 17.0, 1000.0])
def test_a_search_among_unequal_candidates_costs_what_dp_accounting_asks_for_the_dearest(mean):
    from dp_accounting import dp_event, rdp

    accountant = rdp.RdpAccountant(list(default_orders()))
    dearest = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(25.0 / math.sqrt(2)), 60)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dearest, mean or 3.0, 1.0))
    epsilon = repeat_and_select_epsilon(CANDIDATES, DELTA, mean=mean)
    assert epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)


def test_many_candidates_are_cheaper_to_select_from_than_to_release():
    few, many = ([RepeatedEvent(vote_answer(40.0), count) for count in range(100, 100 + number)] for number in (2, 40))
    released_few, released_many = (
        composed_epsilon({str(event.count): event for event in events}, DELTA) for events in (few, many)
    )
    assert released_few < repeat_and_select_epsilon(few, DELTA)
    assert released_many > repeat_and_select_epsilon(many, DELTA)


def test_one_candidate_is_no_search_and_one_run_costs_no_less_than_the_run():
    assert repeat_and_select_epsilon(CANDIDATES[:1], DELTA) == price(CANDIDATES[0], DELTA)
    assert repeat_and_select_epsilon(CANDIDATES[:1], DELTA, mean=1) >= price(CANDIDATES[0], DELTA)


@pytest.mark.parametrize(
    ("candidates", "mean"), [([], None), (CANDIDATES, 0.5), (CANDIDATES, math.inf), (CANDIDATES, math.nan)]
)
def test_an_impossible_search_is_refused(candidates, mean):
    with pytest.raises(SettingError, match="at least"):
        repeat_and_select_epsilon(candidates, DELTA, mean=mean)


def test_candidates_whose_curves_cross_are_priced_by_the_larger_at_each_order():
    laplace, gaussian = LaplaceEvent(2.0, 4.0), vote_answer(3.0)
    both = repeat_and_select_epsilon([laplace, gaussian], DELTA)
    for alone in (laplace, gaussian):
        assert both >= repeat_and_select_epsilon([alone], DELTA, mean=2.0)


def _best_of_a_geometric_number(answers: list[float], ranks: list[int], mean: float) -> list[float]:
    """Probabilities of the best outcome of runs that answer so, by the generating function of their number."""
    gamma = 1 / mean
    generating = lambda s: gamma * s / (1 - (1 - gamma) * s)  # noqa: E731
    best = [0.0] * len(answers)
    below = 0.0
    for outcome in sorted(range(len(answers)), key=lambda index: ranks[index]):
        best[outcome] = generating(below + answers[outcome]) - generating(below)
        below += answers[outcome]
    return best


def _delta_between(first: list[float], second: list[float], epsilon: float) -> float:
    return sum(max(0.0, p - math.exp(epsilon) * q) for p, q in zip(first, second, strict=True))


def test_the_price_covers_the_exact_outcome_of_a_search_and_the_price_of_one_run_does_not():
    """Two candidates answer a bit by randomised response; the search publishes which one won and its answer."""
    epsilons, delta, mean = [1.0, 0.6], 1e-3, 4.0
    distributions = []
    for bit in (0, 1):
        outcome = []
        for epsilon in epsilons:
            kept = math.exp(epsilon) / (1 + math.exp(epsilon))
            outcome += [kept / 2, (1 - kept) / 2] if bit == 0 else [(1 - kept) / 2, kept / 2]
        distributions.append(outcome)
    # The likeliest answer of bit 0 under the dearer candidate wins, the least likely one comes last.
    ranks = [3, 0, 2, 1]
    best = [_best_of_a_geometric_number(answers, ranks, mean) for answers in distributions]
    assert [sum(outcome) for outcome in best] == pytest.approx([1.0, 1.0])
    price_of_search = repeat_and_select_epsilon(
        [RandomisedResponseEvent(epsilon, 2) for epsilon in epsilons], delta, mean=mean
    )
    for first, second in (best, best[::-1]):
        assert _delta_between(first, second, price_of_search) <= delta
    assert max(_delta_between(*best, max(epsilons)), _delta_between(*best[::-1], max(epsilons))) > delta
