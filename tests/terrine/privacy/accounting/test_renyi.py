import math

import numpy as np
import pytest
from scipy.integrate import quad

from terrine.errors import SettingError
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
from terrine.privacy.accounting.gaussian import epsilon_of
from terrine.privacy.accounting.pricing import claimed_by_moments, price
from terrine.privacy.accounting.renyi import (
    convert,
    default_orders,
    pure_epsilon,
    pure_rdp,
    randomised_response_rdp,
    rdp_of_event,
    reference_orders,
)

ORDERS = np.array([1.1, 1.5, 2.0, 4.0, 16.0, 64.0])


def test_the_reference_grid_has_298_sorted_orders():
    orders = reference_orders()
    assert len(orders) == 298
    assert np.all(np.diff(orders) >= 0)


def test_conversions_agree_with_the_reference_values(shared_folder):
    import json

    golden = json.loads((shared_folder / "golden" / "pate_accounting.json").read_text())
    orders = reference_orders()
    for name, conversion in (
        ("rdp_to_dp_classical", "classical"),
        ("rdp_to_dp_improved_dp_accounting_0_6_0", "improved"),
    ):
        for row in golden[name]:
            epsilon, order = convert(orders, orders * row["slope"], row["delta"], conversion)
            assert epsilon == pytest.approx(row["eps"], rel=1e-12)
            assert order == row["order"]
    for row in golden["data_independent_paper_settings"]:
        assert convert(orders, orders * row["slope"], row["delta"], "classical")[0] == pytest.approx(row["classical"])
        assert convert(orders, orders * row["slope"], row["delta"])[0] == pytest.approx(row["improved"], rel=1e-12)


@pytest.mark.parametrize("slope", [1e-14, 1e-8, 1e-4, 0.01, 0.2, 1.0, 10.0, 1e3])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01, 0.5])
def test_the_improved_conversion_equals_dp_accountings_on_a_grid(slope, delta):
    from dp_accounting.rdp import compute_epsilon

    orders = default_orders()
    orders = orders[orders > 1.011]
    reference, _ = compute_epsilon(orders, orders * slope, delta)
    assert convert(orders, orders * slope, delta)[0] == pytest.approx(max(0.0, reference), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("conversion", ["classical", "improved"])
def test_a_conversion_never_beats_the_exact_figure(conversion):
    for mu in (0.01, 0.1, 0.9, 3.0):
        for delta in (1e-9, 1e-5, 1e-2):
            curve = rdp_of_event(GaussianEvent(mu, 1), default_orders())
            assert convert(default_orders(), curve, delta, conversion)[0] >= epsilon_of(mu, delta) * (1 - 1e-10)


@pytest.mark.parametrize(("sensitivity", "scale"), [(1.0, 1.0), (2.0, 20.0), (2.0, 0.7)])
def test_laplace_rdp_is_the_divergence_by_integration(sensitivity, scale):
    shift = sensitivity / scale
    for order, rdp in zip(ORDERS, rdp_of_event(LaplaceEvent(sensitivity, scale), ORDERS), strict=True):

        def moment(x, order=order):
            return math.exp(-order * abs(x) + (order - 1) * abs(x - shift)) / 2

        total = sum(quad(moment, *ends)[0] for ends in ((-60, 0), (0, shift), (shift, 60)))
        assert rdp == pytest.approx(math.log(total) / (order - 1), rel=1e-6)


@pytest.mark.parametrize(("epsilon", "categories"), [(1.0, 2), (0.1, 4), (3.0, 10)])
def test_randomised_response_rdp_is_the_divergence_by_summation(epsilon, categories):
    kept = math.exp(epsilon) / (math.exp(epsilon) + categories - 1)
    other = (1 - kept) / (categories - 1)
    one = np.array([kept] + [other] * (categories - 1))
    two = np.array([other, kept] + [other] * (categories - 2))
    for order, rdp in zip(ORDERS, randomised_response_rdp(epsilon, categories, ORDERS), strict=True):
        assert rdp == pytest.approx(math.log(np.sum(one**order * two ** (1 - order))) / (order - 1), rel=1e-9)


def test_no_epsilon_dp_mechanism_passes_the_pure_curve():
    for epsilon in (0.1, 1.0, 4.0):
        for event in (
            LaplaceEvent(epsilon, 1),
            RandomisedResponseEvent(epsilon, 2),
            RandomisedResponseEvent(epsilon, 9),
        ):
            assert np.all(rdp_of_event(event, ORDERS) <= pure_rdp(epsilon, ORDERS) * (1 + 1e-12))


def test_curves_of_a_composition_add():
    parts = [vote_answer(40), LaplaceEvent(2, 20), RandomisedResponseEvent(0.5, 3)]
    total = 3 * sum(rdp_of_event(part, ORDERS) for part in parts)
    assert rdp_of_event(RepeatedEvent(compose(*parts), 3), ORDERS) == pytest.approx(total)
    assert np.all(rdp_of_event(compose(), ORDERS) == 0)
    assert np.all(np.isinf(rdp_of_event(compose(parts[0], NonPrivateEvent()), ORDERS)))
    assert np.all(rdp_of_event(RepeatedEvent(NonPrivateEvent(), 0), ORDERS) == 0)


def test_gaussian_compositions_are_priced_exactly():
    event = RepeatedEvent(compose(vote_answer(40), RepeatedEvent(vote_answer(80), 4)), 100)
    assert price(event, 1e-5) == epsilon_of(math.sqrt(200 / 40**2 + 800 / 80**2), 1e-5)


def test_few_pure_mechanisms_cost_their_sum_and_many_cost_less():
    laplace = LaplaceEvent(2, 20)
    assert pure_epsilon(RepeatedEvent(laplace, 5)) == pytest.approx(0.5)
    # All but a probability of δ of the loss 0.1: 0.1 + 2 log(1 − δ).
    assert price(RepeatedEvent(laplace, 1), 1e-5) == pytest.approx(0.1 - 2e-5, rel=1e-5)
    assert price(RepeatedEvent(laplace, 1000), 1e-5) < 0.2 * pure_epsilon(RepeatedEvent(laplace, 1000))


def test_a_mixture_costs_no_more_than_its_parts_apart_and_no_less_than_either():
    gaussian, response = RepeatedEvent(vote_answer(40), 200), RandomisedResponseEvent(0.3, 10)
    mixed = price(compose(gaussian, response), 1e-5)
    assert price(gaussian, 1e-5) < mixed <= price(gaussian, 1e-5) + 0.3 + 1e-9


def test_what_has_no_guarantee_costs_everything():
    assert price(compose(vote_answer(40), NonPrivateEvent()), 1e-5) == math.inf
    assert pure_epsilon(vote_answer(40)) == math.inf
    assert pure_epsilon(NonPrivateEvent()) == math.inf


def test_an_unknown_event_is_refused():
    class Unknown(Event):
        pass

    for accountant in (lambda e: rdp_of_event(e, ORDERS), pure_epsilon, lambda e: price(e, 1e-5)):
        with pytest.raises(UnsupportedEventError):
            accountant(compose(vote_answer(1), Unknown()))


@pytest.mark.parametrize(
    "call",
    [
        lambda: convert([2, 3], [0.1], 1e-5),
        lambda: convert([1, 3], [0.1, 0.1], 1e-5),
        lambda: convert([], [], 1e-5),
        lambda: convert([2], [math.nan], 1e-5),
        lambda: convert([2], [-0.1], 1e-5),
        lambda: convert([2], [0.1], 0),
        lambda: convert([2], [0.1], 1e-5, "tight"),
    ],
)
def test_impossible_curves_are_refused(call):
    with pytest.raises(SettingError):
        call()


def test_the_claim_is_the_papers_table():
    """Dodwadmath and Stich (2022), Table 1: ε = 11.75 at γ = 0.1 and 100 queries, above 20 elsewhere."""
    assert claimed_by_moments(0.1, 100, 1e-5) == pytest.approx(11.75, abs=0.01)
    for gamma, queries in ((0.5, 100), (0.1, 1000), (0.5, 1000)):
        assert claimed_by_moments(gamma, queries, 1e-5) > 20


def test_an_impossible_claim_is_refused():
    with pytest.raises(SettingError, match="gamma"):
        claimed_by_moments(0.0, 100, 1e-5)
