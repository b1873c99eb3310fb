"""Canaries: how they are made, how their coins are guessed, and what a bound from them is worth."""

import math

import numpy as np
import pytest

from terrine.aggregation.votes import count_votes
from terrine.errors import InputError, SettingError
from terrine.privacy.auditing.audit import mu_of_guesses
from terrine.privacy.auditing.canaries import (
    Directions,
    Plan,
    best_plan,
    check_count,
    guess_from_histograms,
    guess_from_labels,
    make_canaries,
)
from terrine.privacy.noise import ReplayNoise

CLASSES = 5


def planted(seed, canaries=60, queries=120, others=7):
    """Return directions of canaries that each move nearly all votes in a random pattern, and their coins."""
    rng = np.random.default_rng(seed)
    one, other = rng.integers(CLASSES, size=(2, queries, canaries))
    rest = count_votes(rng.integers(CLASSES, size=(queries, others)), CLASSES)
    return Directions(one, other, rest), rng.random(canaries) < 0.5


def histograms(directions, coins):
    votes = np.where(coins, directions.one, directions.other)
    return directions.rest + count_votes(votes, CLASSES)


def dense(directions):
    """D, by a loop."""
    queries, canaries = directions.one.shape
    table = np.zeros((canaries, queries, CLASSES))
    for canary in range(canaries):
        for query in range(queries):
            table[canary, query, directions.one[query, canary]] += 1
            table[canary, query, directions.other[query, canary]] -= 1
    return table


def test_histograms_are_the_middle_and_half_of_every_direction_by_its_coin():
    directions, coins = planted(0)
    expected = directions.middle + np.tensordot(coins - 0.5, dense(directions), axes=1)
    assert np.array_equal(histograms(directions, coins), expected)
    assert directions.moved == pytest.approx(np.abs(dense(directions)).sum(axis=(1, 2)) / 240)


def test_guesses_from_histograms_are_the_posterior_of_a_linear_model():
    directions, coins = planted(1, canaries=9, queries=12)
    released = histograms(directions, coins) + ReplayNoise(1).gaussian((12, CLASSES), 3.0)
    released[10:] = np.nan
    design = dense(directions)[:, :10].reshape(9, -1)
    covariance = np.linalg.inv(design @ design.T / 9 + 4 * np.eye(9))
    mean = covariance @ design @ (released - directions.middle)[:10].ravel() / 9
    guess = guess_from_histograms(directions, released, 3.0)
    assert guess.evidence == pytest.approx(mean / np.diag(covariance))
    assert guess.information == pytest.approx(np.sqrt(1 / np.diag(covariance) - 4))


def test_guesses_from_labels_take_gradient_and_curvature_of_a_softmax():
    directions, coins = planted(2, canaries=6, queries=12)
    labels = np.append(histograms(directions, coins)[:10].argmax(axis=1), [-1, -1])
    blur = (dense(directions) ** 2).sum(axis=0).mean(axis=1) / 4

    def log_likelihood(x):
        total = 0.0
        counts = directions.middle + np.tensordot(x, dense(directions), axes=1)
        for query in range(10):
            scaled = counts[query] / (math.sqrt(6) / math.pi * math.sqrt(4.0 + blur[query]))
            total += scaled[labels[query]] - np.log(np.exp(scaled).sum())
        return total

    step, eye = 1e-3, np.eye(6)
    gradient = [(log_likelihood(step * e) - log_likelihood(-step * e)) / (2 * step) for e in eye]
    curvature = [
        [
            -(log_likelihood(step * (a + b)) - log_likelihood(step * (a - b)) - log_likelihood(step * (b - a))
              + log_likelihood(-step * (a + b))) / (4 * step**2)
            for b in eye
        ]
        for a in eye
    ]  # fmt: skip
    covariance = np.linalg.inv(np.array(curvature) + 4 * eye)
    guess = guess_from_labels(directions, labels, 2.0)
    assert guess.evidence == pytest.approx(covariance @ gradient / np.diag(covariance), rel=1e-3, abs=1e-4)


def test_without_noise_hardly_a_coin_is_missed_although_canaries_interfere():
    directions, coins = planted(3, canaries=300, queries=120)
    guess = guess_from_histograms(directions, histograms(directions, coins), 1e-3)
    plan = best_plan(guess.information, 0.95, 1)
    right = plan.right(guess.evidence[None], coins[None])
    assert right == plan.guesses == 300
    assert mu_of_guesses(right, plan.guesses, plan.coins, 0.95) > 2


def test_sound_noise_is_never_accused_in_200_repetitions():
    """At a confidence of 1 − 5e-12 each, the chance that any of 200 is accused is below 1e-9 for any seeds. At 95 % the
    bound is positive in most of them and, with these seeds, accuses none either."""
    sigma, accused, found = 8.0, 0, []
    for seed in range(200):
        directions, coins = planted(seed)
        exact = histograms(directions, coins)
        guess = guess_from_histograms(directions, exact + ReplayNoise(seed).gaussian(exact.shape, sigma), sigma)
        right = Plan(60, 60, 1).right(guess.evidence[None], coins[None])
        mu = math.sqrt(2 * 120) / sigma
        accused += mu_of_guesses(right, 60, 60, 1 - 5e-12) > mu
        found.append(mu_of_guesses(right, 60, 60, 0.95))
        accused += found[-1] > mu
    assert accused == 0
    assert np.median(found) > 0.4


def test_a_release_with_less_noise_than_charged_is_caught():
    directions, coins = planted(0, canaries=400, queries=400)
    sigma, exact = 40.0, histograms(directions, coins)
    guess = guess_from_histograms(directions, exact + ReplayNoise(0).gaussian(exact.shape, sigma / 4), sigma)
    plan = best_plan(np.full(400, math.sqrt(2 * 400) / sigma), 0.95, 1)
    right = plan.right(guess.evidence[None], coins[None])
    assert mu_of_guesses(right, plan.guesses, plan.coins, 0.95) > math.sqrt(2 * 400) / sigma


def test_a_plan_counts_the_worst_of_its_runs_as_a_loop_does():
    rng = np.random.default_rng(4)
    evidence, coins = rng.normal(size=(6, 10)), rng.random((6, 10)) < 0.5
    for plan in (Plan(4, 10, 6), Plan(13, 60, 1), Plan(5, 20, 3)):
        rights = []
        for run in range(plan.runs):
            own = slice(run * plan.coins, (run + 1) * plan.coins)
            values, thrown = evidence.ravel()[own], coins.ravel()[own]
            surest = sorted(range(plan.coins), key=lambda i: -abs(values[i]))[: plan.guesses]
            rights.append(sum((values[i] > 0) == thrown[i] for i in surest))
        assert plan.right(evidence, coins) == min(rights)


def test_a_plan_is_made_for_what_can_be_known():
    assert best_plan(np.full(200, 50.0), 0.95, 1) == Plan(200, 200, 1)
    noisy = best_plan(np.full(1000, 0.45), 0.95, 1)
    assert noisy.guesses < 1000
    assert best_plan(np.full(1000, 0.45), 0.95, 1) == noisy
    assert best_plan(np.zeros(20), 0.95, 2).guesses >= 1


@pytest.mark.parametrize("contrast", [1, 16, 127])
def test_canaries_lie_on_either_side_of_their_companion(contrast):
    queries = np.random.default_rng(5).integers(0, 256, size=(30, 1, 6, 6), dtype=np.uint8)
    queries[:, :, 0] = 0
    made = make_canaries(queries, 50, 3, contrast, np.random.default_rng(6))
    middle, one, other = (values.astype(int) for values in (made.companions, made.one, made.other))
    assert made.one.dtype == made.companions.dtype == np.uint8
    assert made.one.shape == (50, 1, 6, 6)
    assert np.array_equal(one - middle, middle - other)
    assert np.all(np.abs(one - middle).reshape(50, -1).sum(axis=1) == 4 * contrast)
    assert np.all(one[:, :, 0] == middle[:, :, 0])
    assert np.all(made.labels != made.companion_labels)
    assert set(made.labels) == set(made.companion_labels) == {0, 1, 2}


def test_rows_of_a_table_are_moved_by_their_columns_deviations():
    rows = np.random.default_rng(7).normal(size=(200, 4)).astype(np.float32) * np.array([1, 10, 0, 0.1], np.float32)
    made = make_canaries(rows, 20, 2, 16, np.random.default_rng(8))
    moved = np.abs(made.one - made.companions)
    assert made.one.dtype == np.float32
    assert moved[:, [0, 1, 3]] == pytest.approx(np.tile(0.16 * rows.std(axis=0)[[0, 1, 3]], (20, 1)), rel=1e-2)
    assert not moved[:, 2].any()


def test_misshapen_votes_and_impossible_numbers_are_refused():
    votes = np.zeros((4, 3), np.int64)
    with pytest.raises(InputError, match=r"\[queries, canaries\]"):
        Directions(votes, votes[:, :2], np.zeros((4, 5), np.int64))
    with pytest.raises(SettingError, match="between 8 and 20"):
        check_count(21, 20, "Every canary needs one teacher")
    with pytest.raises(SettingError, match="between 8 and 20"):
        check_count(7, 20, "Every canary needs one teacher")
