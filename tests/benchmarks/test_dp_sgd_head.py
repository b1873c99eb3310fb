"""DP-SGD of a linear head: gradients by torch, prices by a closed form and by another accountant."""

import math

import numpy as np
import pytest
import torch

from benchmarks.dp_sgd_head import Recipe, exchanged, noise_for, train
from terrine.privacy.accounting.gaussian import epsilon_of
from tests.noises import Silence


def test_a_step_is_the_mean_of_clipped_gradients_as_torch_finds_them_one_by_one():
    generator = np.random.default_rng(0)
    vectors, labels = generator.normal(size=(30, 5)), generator.integers(3, size=30)
    recipe = Recipe(batch=30, epochs=2, rate=0.7, clip=0.4, momentum=0.5)
    found = train(vectors, labels, 3, recipe, 1.0, Silence(), 0)
    weights, step = torch.zeros(5, 3, dtype=torch.float64), torch.zeros(5, 3, dtype=torch.float64)
    for _ in range(2):
        summed = torch.zeros_like(weights)
        for vector, label in zip(vectors, labels, strict=True):
            own = weights.clone().requires_grad_()
            scores = torch.from_numpy(vector) @ own
            (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, torch.tensor(label)), own)
            summed += gradient * min(1.0, 0.4 / float(gradient.norm()))
        step = 0.5 * step + summed / 30
        weights = weights - 0.7 * step
    np.testing.assert_allclose(found, weights.numpy(), atol=1e-12)


def test_records_are_drawn_and_noise_is_added_in_units_of_the_clipping_norm():
    class Loud(Silence):
        def gaussian(self, shape, sigma):
            drawn.append(sigma)
            return np.zeros(shape)

    drawn, vectors, labels = [], np.eye(200)[:, :4] + 1, np.arange(200) % 2
    recipe = Recipe(batch=50, epochs=3, clip=0.25)
    one, other = (train(vectors, labels, 2, recipe, 2.0, Loud(), seed) for seed in (0, 1))
    assert recipe.sampling(200) == (0.25, 12)
    assert drawn == [0.5] * 24
    assert not np.array_equal(one, other)


STEP = 5e-3


def test_where_every_record_takes_part_its_price_is_that_of_one_gaussian():
    """An exchange moves a sum by 2C: μ = 2√T/σ, and what was spent before adds up in squares."""
    mu, before = 2 * math.sqrt(10) / 8, 0.6
    assert exchanged(8.0, 1.0, 10, 1e-5, step=STEP) == pytest.approx(epsilon_of(mu, 1e-5), rel=0.02)
    both = epsilon_of(math.hypot(mu, before), 1e-5)
    assert exchanged(8.0, 1.0, 10, 1e-5, before, STEP) == pytest.approx(both, rel=0.02)


def test_an_exchange_costs_more_than_adding_by_another_accountant_and_the_noise_is_found_for_a_price():
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    sigma, cost = noise_for(2.0, 0.2, 20, 1e-5, step=STEP)
    assert 1.98 <= cost <= 2.0
    accountant = PLDAccountant(value_discretization_interval=STEP)
    added = accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.2, GaussianDpEvent(sigma)), 20))
    assert 1.2 * added.get_epsilon(1e-5) < cost < 2.5 * added.get_epsilon(1e-5)
