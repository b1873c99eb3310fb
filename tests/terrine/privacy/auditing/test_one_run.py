"""Bounds from guessed coins: against linear programs, mechanisms whose guesses are known, and the binomial tail."""

import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri
from scipy.stats import binom, norm

from terrine.errors import InputError, SettingError
from terrine.privacy.auditing.audit import epsilon_of_guesses, mu_of_guesses

CASES = [(2, 2, 2), (3, 3, 3), (4, 4, 4), (5, 3, 3), (6, 4, 4), (8, 8, 7)]


def most_probable(mu, correct, guesses, coins):
    """The largest P[W ≥ correct] over distributions of W that μ-GDP allows, by a linear program.

    b_(k−1) ≥ g(a_k) becomes linear constraints, the tangents of g at many points, since g is convex.
    """
    weights = np.arange(guesses + 1)
    rows, limits = [], []
    for k in range(1, guesses + 1):
        right = np.where(weights >= k, weights, 0) / coins
        wrong = np.where(weights >= k - 1, guesses - weights, 0) / coins
        for x in ndtr(np.linspace(-5, 5, 401)):
            slope = norm.pdf(ndtri(x) - mu) / norm.pdf(ndtri(x))
            rows.append(slope * right - wrong)
            limits.append(slope * x - ndtr(ndtri(x) - mu))
    goal = -(weights >= correct).astype(float)
    found = linprog(goal, A_ub=rows, b_ub=limits, A_eq=np.ones((1, guesses + 1)), b_eq=[1.0], bounds=(0, 1))
    return -found.fun


@pytest.mark.parametrize(("coins", "guesses", "correct"), CASES)
@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_the_gaussian_bound_is_the_largest_loss_under_which_so_many_right_guesses_are_improbable(
    coins, guesses, correct, mu
):
    probability = most_probable(mu, correct, guesses, coins)
    assert mu_of_guesses(correct, guesses, coins, 1 - probability) == pytest.approx(mu, abs=2e-3)


@pytest.mark.parametrize("mu", [0.2, 0.5, 1.5])
@pytest.mark.parametrize("coins", [10, 200])
def test_independent_gaussian_releases_are_never_accused(mu, coins):
    """Each coin released with independent noise is guessed correctly with probability Φ(μ/2), so the number of correct
    guesses is binomial. At the confidence of its binomial tail, the bound must not exceed μ for any number."""
    for correct in range(coins + 1):
        tail = binom.sf(correct - 1, coins, ndtr(mu / 2))
        if 1e-12 < tail < 1:
            assert mu_of_guesses(correct, coins, coins, 1 - tail) <= mu


@pytest.mark.parametrize("mu", [0.2, 0.5, 1.5])
def test_a_mechanism_that_seldom_gives_all_coins_away_together_is_never_accused(mu):
    """With probability p it releases every coin, right as often as μ-GDP allows an event of that probability to be."""
    for p in (0.5, 0.05, 1e-3, 1e-6):
        low, high = 0.5, 1.0
        for _ in range(60):
            share = (low + high) / 2
            low, high = (share, high) if ndtr(ndtri(p * share) - mu) <= p * (1 - share) else (low, share)
        coins = 40
        for correct in range(21, coins + 1):
            tail = p * binom.sf(correct - 1, coins, low) + (1 - p) * binom.sf(correct - 1, coins, 0.5)
            assert mu_of_guesses(correct, coins, coins, 1 - tail) <= mu


def test_guessing_few_coins_of_many_counts_those_that_were_passed_over():
    assert mu_of_guesses(50, 50, 1000, 0.95) > mu_of_guesses(50, 50, 50, 0.95) * 0.2
    assert mu_of_guesses(50, 50, 1000, 0.95) < mu_of_guesses(50, 50, 50, 0.95)
    few, all_of_them = mu_of_guesses(20, 20, 1000, 0.95), mu_of_guesses(500 + 20 // 2, 1000, 1000, 0.95)
    assert few > all_of_them


def test_bounds_grow_with_right_guesses_and_runs_and_shrink_with_confidence():
    for bound in (
        lambda correct, confidence, runs: mu_of_guesses(correct, 100, 100, confidence, runs=runs),
        lambda correct, confidence, runs: epsilon_of_guesses(correct, 100, 100, 1e-9, confidence, runs=runs),
    ):
        by_right = [bound(correct, 0.95, 1) for correct in range(55, 101)]
        assert all(np.diff(by_right) >= 0)
        assert by_right[-1] > 1.5
        assert bound(70, 0.95, 1) < bound(70, 0.95, 5) < bound(70, 0.95, 50)
        assert bound(70, 0.999, 1) < bound(70, 0.95, 1)


def test_several_runs_are_one_at_the_root_of_the_risk():
    assert mu_of_guesses(80, 100, 100, 1 - 0.3**4, runs=4) == pytest.approx(mu_of_guesses(80, 100, 100, 0.7))


def test_the_bound_on_randomised_response_is_too_high_no_more_often_than_stated():
    """Randomised response on each coin is the most revealing ε-private mechanism."""
    rng = np.random.default_rng(0)
    epsilon, guesses, trials = 1.0, 200, 2000
    correct = rng.binomial(guesses, math.e / (1 + math.e), trials)
    bounds = [epsilon_of_guesses(int(k), guesses, guesses, 1e-9, 0.9) for k in np.unique(correct)]
    above = dict(zip(np.unique(correct), bounds, strict=True))
    assert np.mean([above[k] > epsilon for k in correct]) <= 0.1 + 4 * math.sqrt(0.09 / trials)
    assert np.mean([above[k] for k in correct]) > 0.7


def test_the_bound_on_epsilon_inverts_the_binomial_tail():
    epsilon = epsilon_of_guesses(80, 100, 100, 1e-15, 0.95)
    assert binom.sf(79, 100, 1 / (1 + math.exp(-epsilon))) == pytest.approx(0.05, rel=1e-5)
    assert epsilon_of_guesses(50, 100, 100, 1e-5, 0.95) == 0
    assert epsilon_of_guesses(80, 100, 10_000, 1e-4, 0.95) < epsilon
    assert epsilon_of_guesses(0, 0, 10, 1e-5, 0.95) == mu_of_guesses(0, 0, 10, 0.95) == 0


def test_impossible_guesses_are_refused():
    for bound in (lambda *a, **k: epsilon_of_guesses(*a[:3], 1e-5, a[3], **k), mu_of_guesses):
        with pytest.raises(InputError, match="5 of 4"):
            bound(5, 4, 10, 0.95)
        with pytest.raises(InputError, match="10 coins"):
            bound(5, 11, 10, 0.95)
        with pytest.raises(SettingError, match="confidence"):
            bound(5, 5, 10, 1.0)
        with pytest.raises(SettingError, match="a run"):
            bound(5, 5, 10, 0.95, runs=0)
