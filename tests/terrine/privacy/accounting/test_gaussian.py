import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrine.errors import SettingError
from terrine.privacy.accounting.events import (
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RepeatedEvent,
    UnsupportedEventError,
    compose,
    threshold_test,
    vote_answer,
)
from terrine.privacy.accounting.gaussian import (
    GaussianFilter,
    delta_of,
    epsilon_of,
    log_delta_of,
    mu_of,
    mu_squared,
    round_up,
)
from tests.spending import Spending

MUS = [1e-6, 1e-3, 0.03, 0.4, 1.0, 1.01, 3.0, 30.0, 300.0]
DELTAS = [1e-100, 1e-12, 1e-5, 0.01, 0.6]


def exact_log_delta(mu, epsilon):
    """The defining formula with 100 digits."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(100):
        mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
        below = mp.erfc((epsilon / mu - mu / 2) / mp.sqrt(2)) / 2
        above = mp.erfc((epsilon / mu + mu / 2) / mp.sqrt(2)) / 2
        return float(mp.log(below - mp.exp(epsilon) * above))


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_is_at_most_a_hair_above_the_formula_and_never_below(mu, delta):
    epsilon = epsilon_of(mu, delta)
    if epsilon == 0:
        assert exact_log_delta(mu, 0) <= math.log(delta)
    else:
        assert exact_log_delta(mu, epsilon) <= math.log(delta)
        assert exact_log_delta(mu, epsilon * (1 - 1e-10)) > math.log(delta) or mu < 1e-3


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 1e-4, 0.1, 1.0, 20.0])
def test_delta_agrees_with_the_formula_where_it_would_underflow_too(mu, epsilon):
    if (epsilon / mu) ** 2 > 1e5:
        pytest.skip("more digits than the oracle has")
    assert log_delta_of(mu, epsilon) == pytest.approx(exact_log_delta(mu, epsilon), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_mu_of_inverts_epsilon_of_and_rounds_down(mu, delta):
    epsilon = epsilon_of(mu, delta)
    if epsilon:
        found = mu_of(epsilon, delta)
        assert found == pytest.approx(mu, rel=1e-8)
        assert exact_log_delta(found, epsilon) <= math.log(delta)


@pytest.mark.parametrize("sigma", [0.7, 2.0, 10.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_epsilon_equals_the_privacy_loss_distribution_of_dp_accounting(sigma, delta):
    from dp_accounting.pld import privacy_loss_distribution as pld

    reference = pld.from_gaussian_mechanism(sigma, value_discretization_interval=1e-3).get_epsilon_for_delta(delta)
    assert epsilon_of(1 / sigma, delta) <= reference
    assert epsilon_of(1 / sigma, delta) == pytest.approx(reference, abs=2e-3)


def test_the_figures_of_the_published_settings(shared_folder):
    import json

    golden = json.loads((shared_folder / "golden" / "pate_accounting.json").read_text())
    for row in golden["data_independent_paper_settings"]:
        event = compose(
            RepeatedEvent(threshold_test(row["sigma1"]), row["queries"]),
            RepeatedEvent(vote_answer(row["sigma2"]), row["answered"]),
        )
        epsilon = epsilon_of(math.sqrt(mu_squared(event)), row["delta"])
        # The reference discretises, and rounds up.
        assert epsilon <= row["exact_gaussian_pld"] <= epsilon * (1 + 1e-8)


def test_the_mnist_setting_costs_2_5426():
    event = compose(RepeatedEvent(threshold_test(150), 640), RepeatedEvent(vote_answer(40), 286))
    assert mu_squared(event) == pytest.approx(640 / 150**2 + 2 * 286 / 40**2, rel=1e-15)
    assert round(epsilon_of(math.sqrt(mu_squared(event)), 1e-5), 4) == 2.5426


def test_no_mechanism_costs_nothing_and_infinite_mu_costs_everything():
    assert epsilon_of(0, 1e-5) == 0
    assert delta_of(0, 0) == 0
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert delta_of(math.inf, 5) == 1
    assert mu_squared(compose()) == 0


@pytest.mark.parametrize("event", [LaplaceEvent(2, 20), NonPrivateEvent()])
def test_what_is_not_gaussian_has_no_mu_unless_it_never_happened(event):
    assert mu_squared(compose(vote_answer(40), RepeatedEvent(event, 0))) == mu_squared(vote_answer(40))
    for tree in (event, RepeatedEvent(event, 2), compose(vote_answer(40), event)):
        with pytest.raises(UnsupportedEventError):
            mu_squared(tree)


@pytest.mark.parametrize(
    "call",
    [
        lambda: epsilon_of(-1, 1e-5),
        lambda: epsilon_of(math.nan, 1e-5),
        lambda: epsilon_of(1, 0),
        lambda: epsilon_of(1, 1),
        lambda: mu_of(-1, 1e-5),
        lambda: mu_of(math.inf, 1e-5),
        lambda: mu_of(math.nan, 1e-5),
        lambda: delta_of(1, -1),
    ],
)
def test_impossible_numbers_are_refused(call):
    with pytest.raises(SettingError):
        call()


@given(st.floats(0, 1e6), st.integers(0, 8))
def test_round_up_never_rounds_down_and_moves_less_than_one_digit(epsilon, digits):
    rounded = round_up(epsilon, digits)
    assert epsilon <= rounded < epsilon + 10.0**-digits + 1e-9
    assert round_up(rounded, digits) == rounded


def test_round_up_keeps_infinity():
    assert round_up(math.inf) == math.inf


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.01, 20),
    st.floats(1e-12, 0.1),
    st.lists(st.builds(GaussianEvent, st.floats(0.1, 2), st.floats(0.5, 500)), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_a_filter_never_passes_its_budget_in_any_adaptive_order(epsilon, delta, events, random):
    budget = Spending(epsilon, delta)
    spent = []
    while events:
        # The next step may depend on anything: here on chance and on what is left.
        event = events.pop(random.randrange(len(events)))
        if budget.affords(event):
            budget.spend(event)
            spent.append(event)
    assert epsilon_of(math.sqrt(math.fsum(mu_squared(event) for event in spent)), delta) <= epsilon * (1 + 1e-9)
    assert budget.mu_squared_spent <= budget.mu_squared_limit


def test_a_filter_takes_up_where_earlier_releases_left_off():
    whole, first = GaussianFilter(2, 1e-5), RepeatedEvent(vote_answer(40), 150)
    second = Spending(2, 1e-5, mu_squared_spent=mu_squared(first))
    answers = 0
    while second.affords(vote_answer(40)):
        second.spend(vote_answer(40))
        answers += 1
    assert whole.affords(RepeatedEvent(vote_answer(40), 150 + answers))
    assert not whole.affords(RepeatedEvent(vote_answer(40), 151 + answers))
    assert second.mu_squared_left < mu_squared(vote_answer(40))


def test_a_filter_has_no_price_for_what_is_not_gaussian():
    with pytest.raises(UnsupportedEventError):
        GaussianFilter(1, 1e-5).affords(LaplaceEvent(2, 1e9))


def test_a_budget_that_was_passed_before_affords_nothing_but_the_free():
    budget = GaussianFilter(1, 1e-5, mu_squared_spent=100)
    assert budget.mu_squared_left == 0
    assert not budget.affords(vote_answer(1e9))
    assert not budget.affords(compose())
