"""Privacy loss distributions: against sums over all outcomes, closed forms, integrals and dp-accounting."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import gammaln

from terrine.errors import SettingError
from terrine.privacy.accounting import loss_distribution
from terrine.privacy.accounting.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
    UnsupportedEventError,
    compose,
    counts,
    laplace_answers,
    vote_answer,
)
from terrine.privacy.accounting.gaussian import delta_of, epsilon_of
from terrine.privacy.accounting.loss_distribution import loss_delta, loss_epsilon
from terrine.privacy.accounting.pricing import price
from terrine.privacy.accounting.renyi import convert, default_orders, pure_epsilon, rdp_of_event


def response_delta(epsilon: float, answer: float, categories: int, times: int) -> float:
    """δ of repeated randomised response by summing over how often either of the two categories was the answer."""
    kept = 1 / (1 + (categories - 1) * math.exp(-answer))
    first, second = (grid.ravel() for grid in np.meshgrid(np.arange(times + 1), np.arange(times + 1)))
    first, second = first[first + second <= times], second[first + second <= times]
    others = times - first - second
    log_p = gammaln(times + 1) - gammaln(first + 1) - gammaln(second + 1) - gammaln(others + 1)
    log_p += times * math.log(kept) - answer * (second + others)
    if categories > 2:
        log_p += others * math.log(categories - 2)
    else:
        log_p = log_p[others == 0]
        first, second = first[others == 0], second[others == 0]
    losses = answer * (first - second)
    return float(np.sum(np.exp(log_p) * -np.expm1(np.minimum(epsilon - losses, 0.0))))


@pytest.mark.parametrize(("scale", "share"), [(2.0, 0.3), (20.0, 0.5), (20.0, 0.9)])
def test_a_vote_moved_is_two_counts_moved_by_one_and_not_one_by_two(scale: float, share: float) -> None:
    """Against the integral over both counts: δ(ε) = E[(1 − e^(ε − loss))⁺], losses of two counts with noise each."""

    def loss(noise: float) -> float:
        return (abs(noise + 1) - abs(noise)) / scale

    def density(noise: float) -> float:
        return math.exp(-abs(noise) / scale) / (2 * scale)

    epsilon = share * 2 / scale
    grid = np.linspace(-30 * scale, 30 * scale, 60_001)
    losses, mass = np.array([loss(x) for x in grid]), np.array([density(x) for x in grid]) * (grid[1] - grid[0])
    levels, place = np.unique(losses.round(9), return_inverse=True)
    weights = np.bincount(place, mass)
    delta = float((np.outer(weights, weights) * np.maximum(0, -np.expm1(epsilon - levels[:, None] - levels))).sum())
    assert loss_delta(laplace_answers(scale, 1), epsilon, near=delta) == pytest.approx(delta, rel=2e-3)
    assert loss_delta(LaplaceEvent(2.0, scale), epsilon, near=delta) > 1.5 * delta


@pytest.mark.parametrize(
    ("answer", "categories", "times"), [(1.0, 2, 1), (1.0, 10, 10), (0.5, 3, 60), (0.1, 10, 300), (4.0, 2, 40)]
)
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.05])
def test_randomised_response_is_priced_as_by_summing_over_all_outcomes(
    answer: float, categories: int, times: int, delta: float
) -> None:
    found = loss_epsilon(RepeatedEvent(RandomisedResponseEvent(answer, categories), times), delta)
    assert response_delta(found, answer, categories, times) <= delta * (1 + 1e-9)
    assert response_delta(found * (1 - 1e-4), answer, categories, times) > delta or found == 0


@pytest.mark.parametrize("shift", [1e-3, 0.1, 1.0, 7.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-3])
def test_one_laplace_mechanism_costs_its_closed_form(shift: float, delta: float) -> None:
    exact = max(0.0, shift + 2 * math.log1p(-delta))
    found = loss_epsilon(LaplaceEvent(shift, 1.0), delta)
    assert exact * (1 - 1e-12) <= found <= exact + max(1e-4 * exact, delta)


def split_delta(epsilon: float, one: float, other: float) -> float:
    """δ of Laplace noise on two coordinates that are shifted by `one` and `other`, by integration."""

    def rest(loss: float) -> float:
        """δ at ε − loss of the second coordinate only."""
        left = epsilon - loss
        if left >= other:
            return 0.0
        return -math.expm1(left) if left <= -other else -math.expm1((left - other) / 2)

    # The loss of the first coordinate is clipped at both ends: two atoms, and a density between them.
    kinks = sorted({min(max(one - (epsilon + sign * other), 0.0), 2 * one) / 2 for sign in (-1, 1)} | {0.0, one})
    between = sum(
        quad(lambda x: math.exp(-x) / 2 * rest(one - 2 * x), low, high, epsabs=1e-13)[0]
        for low, high in itertools.pairwise(kinks)
    )
    return rest(one) / 2 + math.exp(-one) / 2 * rest(-one) + between


@pytest.mark.parametrize(("one", "other"), [(0.05, 0.05), (0.5, 0.5), (0.2, 0.9), (2.0, 3.0)])
def test_a_shift_split_over_two_coordinates_never_costs_more_than_one_shifted_by_all_of_it(
    one: float, other: float
) -> None:
    whole = one + other
    for epsilon in np.linspace(-1.2 * whole, 1.2 * whole, 49):
        split = split_delta(float(epsilon), one, other)
        t = (whole - epsilon) / 2
        if 0 <= t <= whole:
            assert split == pytest.approx(1 - math.exp(-t) * (1 + min(t, one, other, whole - t) / 2), abs=1e-10)
            assert split <= -math.expm1(-t) + 1e-12
        else:
            assert split == pytest.approx(max(0.0, -math.expm1(epsilon)), abs=1e-10)


def dp_accountings(event: Event, delta: float, step: float) -> float:
    """ε by dp-accounting's distributions; composed by hand, because its accountant ignores how often responses come."""
    total = None
    for part, count in counts(event).items():
        match part:
            case LaplaceEvent():
                one = reference.from_laplace_mechanism(
                    part.scale, part.sensitivity, value_discretization_interval=step
                ).self_compose(count)
            case RandomisedResponseEvent():
                noise = part.categories / (math.exp(part.epsilon) + part.categories - 1)
                one = reference.from_randomized_response(
                    noise, part.categories, value_discretization_interval=step
                ).self_compose(count)
            case GaussianEvent():
                one = reference.from_gaussian_mechanism(
                    part.sigma / math.sqrt(count), part.sensitivity, value_discretization_interval=step
                )
        total = one if total is None else total.compose(one)
    return float(total.get_epsilon_for_delta(delta))


LNMAX = LaplaceEvent(2.0, 20.0)
RESPONSE = RandomisedResponseEvent(0.5, 10)


@pytest.mark.parametrize(
    ("event", "step"),
    [
        (RepeatedEvent(LNMAX, 100), 1e-4),
        (RepeatedEvent(LNMAX, 1000), 1e-4),
        (RepeatedEvent(RESPONSE, 30), 5e-5),
        (RepeatedEvent(RandomisedResponseEvent(0.02, 10), 2000), 1e-5),
        (compose(RESPONSE, RepeatedEvent(vote_answer(40.0), 200)), 1e-4),
        (compose(RepeatedEvent(LNMAX, 100), RepeatedEvent(vote_answer(40.0), 200)), 1e-4),
        (compose(RepeatedEvent(LNMAX, 20), RepeatedEvent(RESPONSE, 3), RepeatedEvent(vote_answer(40.0), 50)), 1e-4),
    ],
)
def test_compositions_agree_with_dp_accounting(event: Event, step: float) -> None:
    theirs = dp_accountings(event, 1e-5, step)
    # Theirs is an upper bound as well, and rounds the losses of randomised response up to its lattice.
    assert loss_epsilon(event, 1e-5) == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize(("least", "times"), [(0.03, 100), (0.05, 1000), (0.04, 5000)])
def test_lnmax_costs_less_than_by_its_renyi_curve(least: float, times: int) -> None:
    event, orders = RepeatedEvent(LNMAX, times), default_orders()
    renyi, _ = convert(orders, rdp_of_event(event, orders), 1e-5)
    found = price(event, 1e-5)
    assert found == loss_epsilon(event, 1e-5) < (1 - least) * renyi


EVENTS = st.one_of(
    st.builds(LaplaceEvent, st.floats(1e-3, 3.0), st.just(1.0)),
    st.builds(RandomisedResponseEvent, st.floats(1e-3, 3.0), st.integers(2, 20)),
    st.builds(GaussianEvent, st.floats(1e-3, 2.0), st.just(1.0)),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(EVENTS, st.integers(1, 300)), min_size=1, max_size=4), st.sampled_from([1e-9, 1e-5, 0.01]))
def test_an_event_is_never_priced_above_any_other_bound_nor_below_one_of_its_parts(
    parts: list[tuple[Event, int]], delta: float
) -> None:
    event = compose(*(RepeatedEvent(part, count) for part, count in parts))
    orders = default_orders()
    found = price(event, delta)
    assert found <= min(pure_epsilon(event), convert(orders, rdp_of_event(event, orders), delta)[0]) * (1 + 1e-12)
    # The lattice's error is far below this.
    assert all(found >= price(RepeatedEvent(part, count), delta) * (1 - 1e-3) for part, count in parts)


def test_a_gaussian_with_hardly_anything_else_costs_what_it_costs() -> None:
    gaussian = RepeatedEvent(vote_answer(40.0), 200)
    exact = epsilon_of(math.sqrt(400 / 40**2), 1e-5)
    assert loss_epsilon(gaussian, 1e-5) == exact
    assert exact <= loss_epsilon(compose(gaussian, RandomisedResponseEvent(1e-7, 2)), 1e-5) <= exact * (1 + 1e-5)
    assert exact < loss_epsilon(compose(gaussian, RandomisedResponseEvent(0.1, 2)), 1e-5) < exact + 0.1


def test_delta_and_epsilon_are_the_same_curve() -> None:
    event = compose(RepeatedEvent(LNMAX, 100), RepeatedEvent(vote_answer(40.0), 50))
    for delta in (1e-9, 1e-5, 1e-2):
        assert loss_delta(event, loss_epsilon(event, delta), near=delta) == pytest.approx(delta, rel=1e-6)
    assert loss_delta(LaplaceEvent(1.0, 1.0), 0.0, near=0.5) == pytest.approx(1 - math.exp(-0.5), rel=1e-3)
    assert loss_delta(vote_answer(40.0), 0.5) == delta_of(math.sqrt(2) / 40, 0.5)


def test_extremes_stay_upper_bounds() -> None:
    for part in (LaplaceEvent(50.0, 1.0), RandomisedResponseEvent(40.0, 2), RandomisedResponseEvent(800.0, 5)):
        top = pure_epsilon(part)
        assert top - 1e-3 < loss_epsilon(part, 1e-5) <= top
        assert loss_epsilon(RepeatedEvent(part, 30), 1e-5) > 25 * top
    many = RepeatedEvent(RandomisedResponseEvent(1e-4, 2), 10**6)
    assert 0.3406 < loss_epsilon(many, 1e-5) < 0.3408
    assert loss_epsilon(compose(LaplaceEvent(0.0, 1.0), RandomisedResponseEvent(0.0, 3)), 1e-5) == 0
    assert loss_epsilon(RandomisedResponseEvent(1e-9, 2), 1e-5) == 0


@pytest.mark.parametrize("tail", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("answer", [0.1, 1.0])
def test_what_falls_out_of_the_window_is_added(monkeypatch: pytest.MonkeyPatch, tail: float, answer: float) -> None:
    monkeypatch.setattr(loss_distribution, "_TAIL", math.log(tail))
    event = RepeatedEvent(RandomisedResponseEvent(answer, 2), 60)
    for epsilon in np.linspace(0.0, 60 * answer, 30):
        exact = response_delta(epsilon, answer, 2, 60)
        assert loss_delta(event, epsilon, near=1e-4) >= exact * (1 - 1e-12)


def test_what_has_no_known_losses_is_refused() -> None:
    with pytest.raises(UnsupportedEventError, match="NonPrivateEvent"):
        loss_epsilon(compose(LNMAX, NonPrivateEvent()), 1e-5)
    with pytest.raises(SettingError):
        loss_epsilon(LNMAX, 0.0)
    with pytest.raises(SettingError):
        loss_delta(LNMAX, -1.0)


@pytest.mark.parametrize("part", [LaplaceEvent(2.0, 1000.0), RandomisedResponseEvent(0.01, 3)])
def test_what_is_repeated_too_often_for_any_lattice_is_priced_by_the_other_bounds(part: Event) -> None:
    """An untrusted file may contain such a count, and pricing it must terminate."""
    event = RepeatedEvent(part, 10**12)
    with pytest.raises(UnsupportedEventError, match="repeated too often"):
        loss_epsilon(event, 1e-5)
    assert 1e5 < price(event, 1e-5) <= pure_epsilon(event)
