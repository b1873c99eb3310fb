"""The clipped sum: its bound holds in finite precision, its noise matches the charge, and no input breaks it."""

import math

import numpy as np
import pytest

from terrine.aggregation.records import STEP
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import GaussianEvent, RepeatedEvent, compose, vote_answer
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared
from terrine.privacy.auditing.audit import audit_scores
from terrine.privacy.noise import ReplayNoise, SecureNoise, lattice_step
from terrine.privacy.noised_sum import ClippedMean, ClippedSum, add_noise, noise_multiplier_for
from tests.noises import Silence


def plainly_clipped(vectors, clip):
    clipped = []
    for vector in vectors:
        norm = math.sqrt(sum(float(x) ** 2 for x in vector))
        clipped.append([float(x) * min(1.0, clip / norm) if norm else 0.0 for x in vector])
    return np.array(clipped)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_clipping_equals_a_plain_loop_and_never_exceeds_the_norm(scale):
    vectors = np.random.default_rng(0).normal(size=(40, 17)) * scale
    vectors[3] = 0
    mechanism = ClippedSum(2.0, 1.0)
    clipped = mechanism.clipped(vectors)
    np.testing.assert_allclose(clipped, plainly_clipped(vectors, 2.0), rtol=1e-8)
    assert np.linalg.norm(clipped, axis=1).max() <= 2.0


def test_the_sum_is_that_of_the_clipped_vectors_to_the_lattice():
    vectors = np.random.default_rng(1).normal(size=(30, 8))
    mechanism = ClippedSum(1.5, 3.0)
    released = mechanism.release([vectors], Silence())
    step = lattice_step(mechanism.sigma)
    np.testing.assert_allclose(released, plainly_clipped(vectors, 1.5).sum(axis=0), atol=1e-8)
    np.testing.assert_array_equal(released, np.rint(released / step) * step)


def test_one_owner_moves_the_sum_by_at_most_the_charged_sensitivity_even_after_rounding():
    generator = np.random.default_rng(2)
    vectors = generator.normal(size=(5, 300)) * 50
    mechanism = ClippedSum(1.0, 0.7)
    with_one = mechanism.release([vectors], Silence())
    for replacement in (-vectors[2], np.zeros(300), np.full(300, 1e300), np.full(300, np.inf)):
        other = vectors.copy()
        other[2] = replacement
        moved = np.linalg.norm(with_one - mechanism.release([other], Silence()))
        assert moved <= mechanism.event.sensitivity
    other[2] = -vectors[2]
    assert np.linalg.norm(with_one - mechanism.release([other], Silence())) > 1.9


def test_the_sum_is_the_same_to_the_last_bit_however_owners_are_grouped_and_ordered():
    vectors = np.random.default_rng(3).normal(size=(31, 9)).astype(np.float32)
    mechanism = ClippedSum(1.0, 4.0)
    whole = mechanism.release([vectors], ReplayNoise(5))
    order = np.random.default_rng(4).permutation(31)
    grouped = mechanism.release(np.array_split(vectors[order], 7), ReplayNoise(5))
    np.testing.assert_array_equal(whole, grouped)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_counts_as_zero_and_moves_no_other(value):
    vectors = np.ones((3, 4))
    vectors[1, 2] = value
    expected = ClippedSum(1.0, 1.0).release([np.ones((2, 4))], Silence())
    np.testing.assert_array_equal(ClippedSum(1.0, 1.0).release([vectors], Silence()), expected)


def test_the_noise_has_the_charged_deviation_on_every_coordinate():
    mechanism = ClippedSum(0.5, 6.0)
    drawn = mechanism.release([np.zeros((3, 4000))], SecureNoise())
    # 4,000 values: each bound is missed by one draw in 10^10.
    assert drawn.std() == pytest.approx(3.0, rel=6.5 / math.sqrt(8000))
    assert abs(drawn.mean()) < 6.5 * 3.0 / math.sqrt(4000)
    assert mechanism.event == GaussianEvent(sensitivity=1.0, sigma=3.0)


def test_an_attack_on_one_release_finds_about_what_is_charged_and_not_more():
    """The best attack projects on the direction in which the owner moved; a sum clipped to too much would be caught."""
    mechanism = ClippedSum(1.0, 1.0)
    direction = np.full(4, 0.5)
    noise = ReplayNoise(11)
    sides = [
        np.array([mechanism.release([vector[None] * 3.0], noise) @ direction for _ in range(3000)])
        for vector in (-direction, direction)
    ]
    bound = audit_scores(*sides, delta=1e-5, confidence=0.999)
    charged = math.sqrt(mu_squared(mechanism.event))
    assert 0.8 * charged < bound.mu <= charged


@pytest.mark.parametrize(("clip", "noise_multiplier"), [(0, 1), (1, 0), (-1, 1), (1, -2), (math.inf, 1), (math.nan, 1)])
def test_without_a_clipping_norm_or_noise_it_is_refused(clip, noise_multiplier):
    with pytest.raises(SettingError, match="greater than 0"):
        ClippedSum(clip, noise_multiplier)


def test_vectors_that_do_not_fit_are_refused():
    mechanism = ClippedSum(1.0, 1.0)
    with pytest.raises(InputError, match="same length"):
        mechanism.release([np.ones((2, 3)), np.ones((2, 4))], Silence())
    with pytest.raises(InputError, match="at least one vector"):
        mechanism.release([], Silence())
    with pytest.raises(InputError, match="owners, length"):
        mechanism.release([np.ones(3)], Silence())
    with pytest.raises(SettingError, match="drowns"):
        ClippedSum(2.0**-16, 2.0**45).clipped(np.ones((1, 4)))


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("share", [0.3, 0.8, 1.0])
def test_releases_and_votes_that_share_a_budget_cost_exactly_the_budget(epsilon, share):
    z = noise_multiplier_for(epsilon, 1e-5, share, releases=6)
    spent = RepeatedEvent(ClippedSum(0.3, z).event, 6)
    limit = mu_of(epsilon, 1e-5) ** 2
    assert mu_squared(spent) == pytest.approx(share * limit, rel=1e-7)
    assert mu_squared(spent) <= share * limit
    if share < 1:
        sigma = math.sqrt(2 * 1000 / ((1 - share) * limit))
        whole = compose(spent, RepeatedEvent(vote_answer(sigma), 1000))
        assert epsilon_of(math.sqrt(mu_squared(whole)), 1e-5) == pytest.approx(epsilon, rel=1e-6)


def test_averages_and_votes_cost_what_the_privacy_loss_distribution_of_dp_accounting_says():
    from dp_accounting.pld import privacy_loss_distribution as pld

    z, vectors, sigma, answers = 8.0, 5, 60.0, 500
    event = compose(RepeatedEvent(ClippedSum(2.5, z).event, vectors), RepeatedEvent(vote_answer(sigma), answers))
    averages = pld.from_gaussian_mechanism(z, sensitivity=2.0, value_discretization_interval=1e-3)
    votes = pld.from_gaussian_mechanism(sigma, sensitivity=math.sqrt(2), value_discretization_interval=1e-3)
    oracle = averages.self_compose(vectors).compose(votes.self_compose(answers))
    ours = epsilon_of(math.sqrt(mu_squared(event)), 1e-5)
    # The oracle rounds every loss up to its grid.
    assert ours <= oracle.get_epsilon_for_delta(1e-5) <= ours + 1e-3 * (vectors + answers)


@pytest.mark.parametrize(
    ("epsilon", "share", "releases", "fault"),
    [(0.0, 0.5, 1, "epsilon"), (1.0, 0.0, 1, "share"), (1.0, 1.5, 1, "share"), (1.0, 0.5, 0, "releases")],
)
def test_an_impossible_share_is_refused(epsilon, share, releases, fault):
    with pytest.raises(SettingError, match=fault):
        noise_multiplier_for(epsilon, 1e-5, share, releases)


def test_noise_is_added_to_whole_numbers_and_too_coarse_a_lattice_is_refused() -> None:
    total = np.array([[3, -(2**50)], [2**55 + 1, 0]])
    noise = ReplayNoise(1).gaussian((2, 2), 8.0)
    exact = [
        int(t) * round(STEP / lattice_step(8.0)) + round(n / lattice_step(8.0))
        for t, n in zip(total.ravel().tolist(), noise.ravel().tolist(), strict=True)
    ]
    expected = [float(value) * lattice_step(8.0) for value in exact]
    assert add_noise(total, 8.0, ReplayNoise(1), STEP).ravel().tolist() == expected
    with pytest.raises(SettingError, match="larger budget"):
        add_noise(total, 600.0, ReplayNoise(1), STEP)


def neighbours_of_a_mean(vectors):
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
        for other in neighbours_of_a_mean(vectors)
    ]
    assert 2 - 1e-6 < max(moved) <= mechanism.event.sensitivity == 2.0


def test_a_mean_costs_its_share_of_a_budget_and_what_is_left_composes_to_the_whole():
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
    with pytest.raises(InputError, match="at least one vector"):
        mechanism.total([])
    with pytest.raises(SettingError):
        ClippedMean(0.0)
