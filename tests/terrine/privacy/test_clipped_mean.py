"""The clipped mean: no neighbour moves it further than is charged, and counting the units costs nothing more."""

import math

import numpy as np
import pytest

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared
from terrine.privacy.clipped_mean import ClippedMean
from terrine.privacy.noise import ReplayNoise, lattice_step


def neighbours(vectors):
    """Every dataset with one unit exchanged (for the worst there is), removed or added."""
    away = [np.full(vectors.shape[1], fill) for fill in (0.0, 1e300, np.nan)]
    for place, vector in enumerate(vectors):
        yield np.delete(vectors, place, axis=0)
        for other in (-vector, *away):
            yield np.concatenate([vectors[:place], [other], vectors[place + 1 :]])
    for other in (vectors[0], *away):
        yield np.concatenate([vectors, [other]])


def test_no_neighbour_moves_what_is_released_by_more_than_the_sensitivity_and_one_moves_it_so_far():
    mechanism = ClippedMean(0.9)
    step = lattice_step(mechanism.event.sigma)
    vectors = np.random.default_rng(0).normal(size=(6, 40)) * np.array([[1e-3], [0.1], [1], [10], [1e6], [1e200]])
    own = mechanism.total([vectors])
    moved = [
        math.sqrt(sum(int(x) ** 2 for x in mechanism.total([other[:3], other[3:]]) - own)) * step
        for other in neighbours(vectors)
    ]
    assert 2 - 1e-6 < max(moved) <= mechanism.event.sensitivity == 2.0


def test_a_share_of_a_budget_is_what_it_costs_and_what_is_left_composes_to_the_whole():
    event = ClippedMean.for_share(0.05, epsilon=4, delta=1e-5).event
    whole = mu_of(4, 1e-5)
    assert mu_squared(event) == pytest.approx(0.05 * whole**2, rel=1e-8)
    assert epsilon_of(math.sqrt(mu_squared(event) + 0.95 * whole**2), 1e-5) <= 4


def test_the_mean_and_the_deviation_of_its_noise_follow_from_what_is_released():
    vectors = np.random.default_rng(1).normal(size=(4000, 30)) / 40 + 0.1
    mechanism = ClippedMean(20.0)
    mean, noise = mechanism.mean(mechanism.release(np.array_split(vectors, 7), ReplayNoise(3)))
    assert noise == pytest.approx(20 / 4000, rel=0.02)
    error = mean - vectors.mean(0)
    assert 0.6 * noise < error.std() < 1.4 * noise
    with pytest.raises(InputError, match="no vector"):
        mechanism.total([])
    with pytest.raises(SettingError):
        ClippedMean(0.0)
