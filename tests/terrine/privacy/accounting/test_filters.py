"""The filters: what they charge, which one an account gets, and that no adversary gets past them."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from terrine.privacy.accounting.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
    compose,
    vote_answer,
)
from terrine.privacy.accounting.filters import GaussianSum, RenyiSum, filter_for
from terrine.privacy.accounting.gaussian import epsilon_of, pure_mu
from terrine.privacy.accounting.renyi import conversion_cost, default_orders, rdp_of_event
from terrine.privacy.ledger.account import Account, Budget

RESPONSES = tuple(RandomisedResponseEvent(epsilon, 2) for epsilon in (0.2, 0.5, 0.9))
Value = Callable[[float, float], float]


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.5, 2.0, 8.0, 60.0])
def test_a_pure_mechanism_lies_above_the_gaussian_curve_of_its_mu_and_above_no_higher_one(epsilon: float) -> None:
    mu = pure_mu(epsilon)
    x = np.concatenate((np.linspace(0, 1, 4001), np.geomspace(1e-30, 0.5, 2001)))
    segments = np.maximum(1 - math.exp(epsilon) * x, math.exp(-epsilon) * (1 - x)).clip(0)
    assert np.all(ndtr(-ndtri(x) - mu) <= segments + 1e-15)
    kink = 1 / (1 + math.exp(epsilon))
    assert ndtr(-ndtri(kink) - mu * 0.999) > kink
    assert pure_mu(0.0) == 0
    assert pure_mu(math.inf) == math.inf


def test_the_first_release_decides_the_filter() -> None:
    assert filter_for(compose(vote_answer(40.0), RepeatedEvent(vote_answer(20.0), 3)), 2.0, 1e-5) == GaussianSum()
    for first in (LaplaceEvent(2.0, 20.0), RESPONSES[0], compose(vote_answer(40.0), LaplaceEvent(2.0, 20.0))):
        kept = filter_for(first, 2.0, 1e-5)
        orders = default_orders()
        payable = (2.0 - conversion_cost(orders, 1e-5)) / rdp_of_event(first, orders)
        assert kept == RenyiSum(float(orders[np.argmax(payable)]))
        assert kept != filter_for(first, 20.0, 1e-5)
        assert isinstance(filter_for(first, None, 1e-5), RenyiSum)
    assert filter_for(NonPrivateEvent(), 2.0, 1e-5).cost(NonPrivateEvent()) == math.inf


def test_a_pure_release_after_a_gaussian_one_enters_by_its_mu() -> None:
    kept, pure = GaussianSum(), RepeatedEvent(RESPONSES[1], 4)
    assert kept.cost(vote_answer(40.0)) == 2 / 40**2
    mu = 2 * ndtri(math.exp(0.5) / (1 + math.exp(0.5)))
    assert kept.cost(pure) == pytest.approx(4 * mu**2, rel=1e-9)
    assert kept.cost(compose(pure, vote_answer(40.0))) == pytest.approx(4 * mu**2 + 2 / 40**2, rel=1e-9)
    assert kept.cost(NonPrivateEvent()) == math.inf
    assert kept.epsilon(math.inf, 1e-5) == math.inf


def best_adversary(account: Account, menu: tuple[Event, ...], depth: int, leaf: Value) -> float:
    """The largest Σ leaf(p, q) over all outcomes that any choice of releases reaches, each made after the outcomes of
    those before, as long as the account allows it. p and q are the outcomes' probabilities on two neighbours.

    The sum falls apart by outcome, so the best choice at each is found by itself: every strategy is tried.
    """

    @cache
    def allowed(spent: tuple[Event, ...]) -> tuple[Event, ...]:
        assert account.budget.epsilon is not None
        return tuple(event for event in menu if account.total(*spent, event) <= account.budget.epsilon)

    def value(p: float, q: float, spent: tuple[Event, ...]) -> float:
        best = leaf(p, q)
        if len(spent) == depth:
            return best
        for event in allowed(spent):
            assert isinstance(event, RandomisedResponseEvent)
            kept = 1 / (1 + math.exp(-event.epsilon))
            # Only the first release depends on the order.
            after = (*spent[:1], *sorted((*spent[1:], event), key=str))
            best = max(best, value(p * kept, q * (1 - kept), after) + value(p * (1 - kept), q * kept, after))
        return best

    return value(1.0, 1.0, ())


@pytest.mark.parametrize(("epsilon", "delta"), [(0.6, 0.05), (1.0, 0.02), (1.0, 0.1), (0.4, 0.2)])
def test_no_adaptive_choice_of_responses_passes_the_budget(epsilon: float, delta: float) -> None:
    account = Account(Budget("d", epsilon, delta, "release"), {}, {})

    def leaf(p: float, q: float) -> float:
        return max(0.0, p - math.exp(epsilon) * q)

    found = best_adversary(account, RESPONSES, 6, leaf)
    assert found <= delta * (1 + 1e-12)


@pytest.mark.parametrize(("mu", "epsilon", "delta"), [(0.2, 0.6, 0.05), (0.5, 1.0, 0.1)])
def test_no_adaptive_choice_of_responses_after_a_gaussian_release_passes_the_budget(
    mu: float, epsilon: float, delta: float
) -> None:
    account = Account(Budget("d", epsilon, delta, "release"), {"first": GaussianEvent(mu, 1.0)}, {})
    # Later releases may depend on the Gaussian outcome in any way, so the best choice is found at every outcome.
    outcomes = np.linspace(-8.0, 8.0 + mu, 161)
    width = outcomes[1] - outcomes[0]
    total = 0.0
    for x in outcomes:
        ratio = math.exp(mu * x - mu * mu / 2)

        def leaf(p: float, q: float, ratio: float = ratio) -> float:
            return max(0.0, p * ratio - math.exp(epsilon) * q)

        total += width * math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * best_adversary(account, RESPONSES, 4, leaf)
    assert 0.1 * delta < total <= delta


def test_a_gaussian_account_pays_for_exactly_its_budget() -> None:
    answer = RepeatedEvent(vote_answer(40.0), 10)
    epsilon = epsilon_of(math.sqrt(5 * 20 / 40**2), 1e-5) * (1 + 1e-9)
    account = Account(Budget("d", epsilon, 1e-5, "release"), {}, {})
    assert account.total(*[answer] * 5) <= epsilon < account.total(*[answer] * 6)


@pytest.mark.parametrize("kept", [GaussianSum(), RenyiSum(20.0)])
def test_what_is_left_is_left_and_a_little_more_is_not(kept: GaussianSum | RenyiSum) -> None:
    cost = kept.cost(LaplaceEvent(0.3, 1.0))
    left = kept.mu_left(cost, 3.0, 1e-5)
    for factor, fits in ((0.999, True), (1.001, False)):
        assert (kept.epsilon(cost + kept.cost(GaussianEvent(factor * left, 1.0)), 1e-5) <= 3.0) == fits
    assert kept.mu_left(50.0, 3.0, 1e-5) == 0
