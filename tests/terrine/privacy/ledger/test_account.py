"""An account: one permanent filter, the exact price of a first release, and the budget used."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrine.errors import BudgetError
from terrine.privacy.accounting.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
    UnsupportedEventError,
    compose,
    vote_answer,
)
from terrine.privacy.accounting.gaussian import mu_of, mu_squared, pure_mu
from terrine.privacy.accounting.pricing import covers, price
from terrine.privacy.accounting.renyi import conversion_cost, default_orders, pure_epsilon, rdp_of_event
from terrine.privacy.ledger.account import Account, Budget
from tests.terrine.privacy.ledger.helpers import DATASET, Draw, Place, ask

LNMAX = RepeatedEvent(LaplaceEvent(2.0, 20.0), 100)
GAUSSIAN = RepeatedEvent(vote_answer(40.0), 100)


def account(epsilon: float | None, *reserved: Event, delta: float = 1e-5, **changes: Any) -> Account:
    content = {str(number): event for number, event in enumerate(reserved)}
    return Account(Budget(DATASET, epsilon, delta, "release"), content, **({"committed": {}} | changes))


EVENTS = st.one_of(
    st.builds(GaussianEvent, st.floats(0.01, 1.0), st.just(1.0)),
    st.builds(LaplaceEvent, st.floats(0.01, 1.0), st.just(1.0)),
    st.builds(RandomisedResponseEvent, st.floats(0.01, 1.0), st.integers(2, 10)),
    st.just(NonPrivateEvent()),
)
RELEASES = st.builds(lambda parts: compose(*parts), st.lists(EVENTS, min_size=1, max_size=3))


@settings(max_examples=150)
@given(st.lists(RELEASES, min_size=2, max_size=8), st.sampled_from([0.5, 2.0, 6.0]), st.sampled_from([1e-6, 1e-2]))
def test_what_an_account_lets_through_adds_up_to_its_limit_in_one_measure(
    wanted: list[Event], epsilon: float, delta: float
) -> None:
    made: list[Event] = []
    for event in wanted:
        try:
            account(epsilon, *made, delta=delta).check_all([event], "secure")
        except BudgetError:
            continue
        made.append(event)
    if len(made) < 2:
        return
    assert price(compose(*made), delta) <= epsilon * (1 + 1e-9), "what was used is within the budget"
    try:
        mu_squared(made[0])
    except UnsupportedEventError:
        orders = default_orders()
        total = sum(rdp_of_event(event, orders) for event in made) + conversion_cost(orders, delta)
        assert total.min() <= epsilon * (1 + 1e-9)
    else:
        parts = [part for event in made for part in (event.events if hasattr(event, "events") else (event,))]
        squares = []
        for part in parts:
            inner, count = (part.event, part.count) if isinstance(part, RepeatedEvent) else (part, 1)
            gaussian = isinstance(inner, GaussianEvent)
            squares.append(count * (mu_squared(inner) if gaussian else pure_mu(pure_epsilon(inner)) ** 2))
        assert math.fsum(squares) <= mu_of(epsilon, delta) ** 2 * (1 + 1e-9)


def test_an_account_that_begins_with_another_mechanism_keeps_to_one_order() -> None:
    """The smallest bound over orders would allow more than any one order does."""
    epsilon = price(compose(*[LNMAX] * 6), 1e-5)
    made = 1
    while account(epsilon).total(*[LNMAX] * (made + 1)) <= epsilon:
        made += 1
    assert 4 <= made < 6
    orders = default_orders()
    # The order is the first release's, so it does not move with what follows.
    later = account(epsilon).total(LNMAX, *[GAUSSIAN] * 3)
    alone = min(rdp_of_event(compose(LNMAX, *[GAUSSIAN] * 3), orders) + conversion_cost(orders, 1e-5))
    assert later > alone


def test_a_first_release_alone_may_use_its_own_price_and_then_nothing_follows() -> None:
    orders = default_orders()
    epsilon = price(LNMAX, 1e-5) * (1 + 1e-9)
    assert epsilon < min(rdp_of_event(LNMAX, orders) + conversion_cost(orders, 1e-5))
    account(epsilon).check_all([LNMAX], "secure")
    cheap = LaplaceEvent(1e-6, 1.0)
    # Further releases depend on the worst-case cost of the first, even if its actual cost was lower.
    for committed in ({}, {"0": RepeatedEvent(LaplaceEvent(2.0, 20.0), 1)}):
        with pytest.raises(BudgetError, match="past its budget"):
            account(epsilon, LNMAX, committed=committed).check_all([cheap], "secure")
    account(2 * epsilon, LNMAX).check_all([cheap], "secure")


def test_what_a_covered_first_release_did_not_use_is_given_back() -> None:
    small = RepeatedEvent(LaplaceEvent(2.0, 20.0), 10)
    epsilon = account(None).total(LNMAX, LaplaceEvent(1.0, 100.0)) * 1.02
    with pytest.raises(BudgetError):
        account(epsilon, LNMAX).check_all([LNMAX], "secure")
    account(epsilon, LNMAX, committed={"0": small}).check_all([small], "secure")


def test_a_budget_that_changes_leaves_the_order(place: Place) -> None:
    ledger = place.open()
    ledger.register(DATASET, epsilon=20.0, delta=1e-5, mode="release")
    ask(ledger, "a", Draw(LNMAX), worst_case=LNMAX)
    before = ledger.account(DATASET)
    ledger.set_budget(DATASET, 5.0, 1e-6)
    after = ledger.account(DATASET)
    assert before is not None
    assert after is not None
    assert after.opened == before.opened == Budget(DATASET, 20.0, 1e-5, "release")
    assert after.budget == Budget(DATASET, 5.0, 1e-6, "release")
    order = before._filter(LNMAX)
    assert after._filter(LNMAX) == order != account(5.0, delta=1e-6)._filter(LNMAX)
    with pytest.raises(BudgetError, match=r"Gaussian release of up to ε=0\.0000"):
        ask(ledger, "b", Draw(LNMAX), worst_case=LNMAX)


def test_a_release_that_costs_nothing_decides_nothing(place: Place) -> None:
    ledger = place.open()
    ledger.register(DATASET, epsilon=3.0, delta=1e-5, mode="release")
    ask(ledger, "a", Draw(compose()), worst_case=compose())
    found = ledger.account(DATASET)
    assert found is not None
    assert found.opened is None
    assert found.total() == 0
    assert found.total(LNMAX) == price(LNMAX, 1e-5)


def test_over_budget_the_message_fits_the_filter() -> None:
    with pytest.raises(BudgetError, match=r"so far: ε=0\. Left: one Gaussian release of up to ε=2\.0000"):
        account(2.0).check_all([LNMAX], "secure")
    with pytest.raises(BudgetError, match=r"Left: one Gaussian release of up to ε=[234]\.\d+"):
        account(5.0, LaplaceEvent(2.0, 20.0)).check_all([RepeatedEvent(LNMAX, 3)], "secure")
    with pytest.raises(BudgetError, match=r"Left: one Gaussian release of up to ε=1\.\d+"):
        account(2.0, GAUSSIAN).check_all([LNMAX], "secure")
    with pytest.raises(BudgetError, match="past its budget"):
        account(2.0, GAUSSIAN).check_all([NonPrivateEvent()], "secure")


def test_a_reservation_covers_what_costs_no_more_in_every_measure() -> None:
    mixed = compose(LNMAX, GAUSSIAN)
    fewer = compose(RepeatedEvent(LaplaceEvent(2.0, 20.0), 99), vote_answer(40.0))
    assert covers(mixed, fewer, 1e-5)
    assert covers(NonPrivateEvent(), mixed, 1e-5)
    assert not covers(fewer, mixed, 1e-5)
    assert covers(LNMAX, RepeatedEvent(LaplaceEvent(1.0, 20.0), 100), 1e-5)
    # Cheaper at this δ, dearer at large orders: it would not be covered in an account that is kept there.
    laplace, gaussian = LaplaceEvent(1.0, 1.0), GaussianEvent(0.2, 1.0)
    assert price(gaussian, 1e-5) < price(laplace, 1e-5)
    assert not covers(laplace, gaussian, 1e-5)


def test_several_releases_are_checked_one_after_the_other() -> None:
    """Together they are one planned composition, and cost less than a filter charges for them."""
    epsilon = price(compose(LNMAX, LNMAX), 1e-5) * (1 + 1e-9)
    account(epsilon).check_all([compose(LNMAX, LNMAX)], "secure")
    with pytest.raises(BudgetError, match=r"These releases may cost up to ε=\S+"):
        account(epsilon).check_all([LNMAX, LNMAX], "secure")


def test_without_a_budget_nothing_is_refused() -> None:
    account(None, LNMAX, NonPrivateEvent()).check_all([NonPrivateEvent()], "secure")
