"""Gaussian noise on a Poisson sample: bounds on ε against other libraries, exact integrals and all neighbours."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import stats

from terrine.errors import SettingError
from terrine.privacy.accounting.events import (
    GaussianEvent,
    LaplaceEvent,
    RepeatedEvent,
    SampledGaussianEvent,
    UnsupportedEventError,
    compose,
    from_json,
    of_several,
    to_json,
)
from terrine.privacy.accounting.filters import GaussianSum, RenyiSum, filter_for
from terrine.privacy.accounting.loss_distribution import loss_delta, loss_epsilon
from terrine.privacy.accounting.pricing import price
from terrine.privacy.accounting.renyi import mu_squared_bound, rdp_of_event

TRAININGS = [(1.0, 0.01, 1000, 1e-5), (0.8, 0.001, 5000, 1e-6), (2.0, 0.1, 500, 1e-5), (1.0, 0.5, 50, 1e-5)]


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), TRAININGS)
def test_epsilon_under_add_remove_is_that_of_dp_accounting(sigma, rate, steps, delta):
    ours = loss_epsilon(RepeatedEvent(SampledGaussianEvent(1, 0, sigma, rate), steps), delta)
    theirs = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=1e-4)
    upper = theirs.self_compose(steps).get_epsilon_for_delta(delta)
    rounded_down = pld.from_gaussian_mechanism(
        sigma,
        sampling_prob=rate,
        value_discretization_interval=1e-4,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    lower = rounded_down.self_compose(steps).get_epsilon_for_delta(delta)
    assert lower < ours
    assert ours == pytest.approx(upper, rel=2e-3)


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), TRAININGS)
def test_epsilon_under_replacement_is_that_of_binned_outcomes(sigma, rate, steps, delta):
    """Outcomes in bins are post-processed, so their ε is a lower bound, which the bins bring close to the exact one."""
    edges = np.linspace(-12 * sigma, 12 * sigma + 1, 40_000)

    def binned(mean):
        masses = (1 - rate) * np.diff(stats.norm.cdf(edges, 0, sigma))
        return masses + rate * np.diff(stats.norm.cdf(edges, mean, sigma))

    p, q = binned(1.0), binned(-1.0)
    kept = (p > 1e-30) & (q > 1e-30)
    log_p, log_q = (dict(enumerate(np.log(masses[kept]))) for masses in (p, q))
    lower, upper = (
        pld.from_two_probability_mass_functions(
            log_q, log_p, pessimistic_estimate=up, value_discretization_interval=1e-4, symmetric=True
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for up in (False, True)
    )
    ours = loss_epsilon(RepeatedEvent(SampledGaussianEvent(1, 1, sigma, rate), steps), delta)
    assert lower < ours < upper * (1 + 1e-4)  # losses rounded down and up
    assert ours == pytest.approx((lower + upper) / 2, rel=3e-3)


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("epsilon", [-1.0, -0.1, 0.0, 0.05, 0.5, 2.0])
def test_no_two_contributions_differ_by_more_than_opposite_ones_of_full_length(rate, epsilon):
    """The hockey-stick divergence of every pair in the plane, summed on a grid, is below that of the pair used."""
    rng = np.random.default_rng(7)
    axis = np.linspace(-7, 7, 281)
    plane = np.stack(np.meshgrid(axis, axis), axis=-1)
    cell = (axis[1] - axis[0]) ** 2

    def density(mean):
        return np.exp(-((plane - mean) ** 2).sum(-1) / 2) / (2 * math.pi)

    def divergence(f, g):
        p, q = ((1 - rate) * density(np.zeros(2)) + rate * density(np.array(mean)) for mean in (f, g))
        return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell)

    worst = divergence((1.0, 0.0), (-1.0, 0.0))
    for _ in range(40):
        angles, lengths = rng.uniform(0, 2 * math.pi, 2), np.sqrt(rng.uniform(0, 1, 2))
        f, g = (length * np.array([math.cos(a), math.sin(a)]) for a, length in zip(angles, lengths, strict=True))
        assert divergence(f, g) <= worst + 1e-9
    if epsilon >= 0:
        event = SampledGaussianEvent(1, 1, 1.0, rate)
        assert loss_delta(event, epsilon, near=max(worst, 1e-9)) == pytest.approx(worst, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize(("plus", "minus"), [(1, 1), (1, 0)])
@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.01), (0.5, 0.3), (4.0, 0.001)])
@pytest.mark.parametrize("order", [1.01, 1.5, 7.3, 32.0])
def test_renyi_divergence_is_exact(plus, minus, sigma, rate, order):
    mpmath.mp.dps = 30

    def mixture(x, mean):
        return (1 - rate) * mpmath.npdf(x, 0, 1) + rate * mpmath.npdf(x, mean, 1)

    first, second = mpmath.mpf(plus) / sigma, -mpmath.mpf(minus) / sigma
    peak = order * (first - second)
    points = [-30, -10, -3, 0, 3, 10, peak / 2 + 10, peak + 10, peak + 40]
    whole = mpmath.quad(lambda x: mixture(x, first) ** order * mixture(x, second) ** (1 - order), points)
    exact = float(mpmath.log(whole) / (order - 1))
    found = rdp_of_event(SampledGaussianEvent(plus, minus, sigma, rate), [order])[0]
    assert exact <= found <= exact * (1 + 1e-8)


def test_renyi_divergence_at_whole_orders_is_that_of_dp_accounting():
    orders = np.array([2, 3, 8, 64])
    ours = rdp_of_event(SampledGaussianEvent(1, 0, 1.3, 0.02), orders)
    theirs = rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(0.02, 1.3, orders)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_a_whole_sample_is_a_gaussian_mechanism():
    event = SampledGaussianEvent(1, 1, 3.0, 1.0)
    for delta in (1e-3, 1e-8):
        assert price(RepeatedEvent(event, 5), delta) == price(RepeatedEvent(GaussianEvent(2.0, 3.0), 5), delta)
    np.testing.assert_allclose(rdp_of_event(event, [2, 50]), rdp_of_event(GaussianEvent(2.0, 3.0), [2, 50]))


def test_the_worse_direction_counts():
    one = SampledGaussianEvent(1, 0, 0.7, 0.2)
    assert loss_epsilon(one, 1e-4) == loss_epsilon(one.mirrored, 1e-4)
    assert loss_epsilon(one, 1e-4) < loss_epsilon(SampledGaussianEvent(1, 1, 0.7, 0.2), 1e-4)


@pytest.mark.parametrize("other", [GaussianEvent(1.0, 2.0), LaplaceEvent(1.0, 4.0)])
def test_compositions_with_other_mechanisms_cost_more_than_parts_and_less_than_sums(other):
    training = RepeatedEvent(SampledGaussianEvent(1, 1, 1.0, 0.01), 300)
    together = price(compose(training, other), 1e-5)
    assert max(price(training, 1e-5), price(other, 1e-5)) < together
    assert together < price(training, 5e-6) + price(other, 5e-6)


def test_more_noise_fewer_steps_and_smaller_samples_cost_less():
    def cost(sigma, rate, steps):
        return price(RepeatedEvent(SampledGaussianEvent(1, 1, sigma, rate), steps), 1e-5)

    base = cost(1.0, 0.01, 500)
    assert cost(1.1, 0.01, 500) < base < cost(1.0, 0.011, 500)
    assert cost(1.0, 0.01, 400) < base < price(RepeatedEvent(GaussianEvent(2.0, 1.0), 500), 1e-5)


@pytest.mark.parametrize("steps", [10**6, 10**9, 10**15])
def test_absurd_numbers_of_steps_have_a_price(steps):
    assert price(RepeatedEvent(SampledGaussianEvent(1, 1, 1.0, 1e-3), steps), 1e-5) > 1


def test_filters_count_sampling_by_its_renyi_divergence_and_never_by_mu():
    training = RepeatedEvent(SampledGaussianEvent(1, 1, 1.0, 0.01), 1000)
    renyi = filter_for(training, 8.0, 1e-5)
    assert isinstance(renyi, RenyiSum)
    assert renyi.cost(training) == pytest.approx(1000 * rdp_of_event(training.event, [renyi.order])[0], rel=1e-9)
    assert renyi.epsilon(renyi.cost(training), 1e-5) >= price(training, 1e-5)
    assert GaussianSum().cost(training) == mu_squared_bound(training) == pytest.approx(4000)


def test_stored_events_come_back_and_impossible_ones_are_refused():
    event = RepeatedEvent(SampledGaussianEvent(1, 0, 1.1, 0.25), 12)
    assert from_json(to_json(event)) == event
    for values in (
        (1, 1, 0, 0.1),
        (1, 1, 1, 0),
        (1, 1, 1, 1.1),
        (1, 1, math.nan, 0.1),
        (-1, 1, 1, 0.1),
        (1, 1, 1, -0.1),
    ):
        with pytest.raises(SettingError):
            SampledGaussianEvent(*values)
    with pytest.raises(UnsupportedEventError):
        of_several(event, 2)
