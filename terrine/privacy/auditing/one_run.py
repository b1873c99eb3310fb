"""Lower bounds on the privacy loss from guessing coins: one run with many coins says as much as many runs.

Each of m units had its contents decided by a fair coin of its own, independent of all else (there or not, or one of two
contents), the mechanism ran once, and somebody who saw what it released guessed r of the coins. How many of those
guesses can be right is limited by privacy, whatever the guesser knows besides the coins. Guesses about different coins
depend on each other through the release, so their number is not binomial in general, and two theorems say what holds:

- `epsilon_of_guesses`, for (ε, δ): Steinke, Nasr & Jagielski (2023), Theorem 5.2. At small δ it is weak against
  Gaussian noise, whose rare large losses δ has to pay for.
- `mu_of_guesses`, for mechanisms that are charged as Gaussian, μ-GDP: after Mahloujifar, Melis & Chaudhuri (2024),
  whose recursion follows from the proof below.

**Proof of the second.** Let W of the r guesses be right, P_k = P[W ≥ k], a_k = E[W; W ≥ k]/m the probability that a
coin picked at random is guessed rightly and W ≥ k, b_k = E[r − W; W ≥ k]/m that it is guessed wrongly and W ≥ k, so
a_k + b_k = (r/m) P_k. Fix the picked coin and all the others. That it is guessed as "one" while j of the *other*
guesses are right is an event of the release alone. If the coin is "one", W = j + 1 there and the guess is right; if it
is "other", W = j and it is wrong. Under μ-GDP an event of probability x has probability at least g(x) = Φ(Φ⁻¹(x) − μ)
after the coin is turned, and g is convex, so by Jensen's inequality over coins

    b_(k−1) ≥ g(a_k)    for every k.                                                                              (1)

Say P_c ≥ p. Let s_c = p, r_c = pc/m, h_c = p(r − c)/m and, for i = c − 1, …, 0,

    h_i = max(h_(i+1), g(r_(i+1))),   r_i = r_(i+1) + i/(r − i) · (h_i − h_(i+1)),   s_i = (r_i + h_i)·m/r.

This is what happens if W = c with probability p, and every smaller value i is as probable as (1) asks, s_i − s_(i+1).
Claim: P_i ≥ s_i and a_i ≥ r_i. At c, a_c ≥ (c/m) P_c. Below, where h_i = h_(i+1), both follow from P and a growing as i
falls. Elsewhere h_i = g(r_(i+1)) ≤ g(a_(i+1)) ≤ b_i, and from Σ_(k>i) P_k = E[W − i; W > i] follows
a_i = i/(r − i)·b_i + r/(m(r − i))·Σ_(k>i) P_k, in which every term is at least its counterpart; so a_i ≥ r_i, and
P_i = (a_i + b_i)·m/r ≥ s_i. Hence s_0 ≤ 1 for every p ≤ P_c: where s_0 > 1, P[W ≥ c] < p. ∎

No recursion can do much better without another assumption: a mechanism may be μ-GDP for each unit and yet give many
units away together, in one run of twenty. That is why guessing every coin proves less than guessing those that the
release says most about, and why several independent runs are worth more than one with as many coins.

**Several runs.** R runs with coins and noise of their own are independent, and P[W ≥ c in all of them] < p^R. So the
bound takes the *worst* run's number of right guesses at p = (1 − confidence)^(1/R); one run is R = 1.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import bdtrc, ndtr, ndtri

from terrine.errors import InputError, SettingError

_LARGEST_EPSILON, _LARGEST_MU = 50.0, 40.0


def epsilon_of_guesses(
    correct: int, guesses: int, coins: int, delta: float, confidence: float, *, runs: int = 1
) -> float:
    """Lower bound on ε from guessing some of the coins of a run (Steinke, Nasr & Jagielski 2023, Theorem 5.2).

    Args:
        correct: Guesses that were right, in the worst of the runs.
        guesses: Guesses made in each run, a number fixed beforehand; which coins they are about may follow the release.
        coins: Units whose contents were decided by a coin, in each run.

    Raises:
        InputError: impossible numbers of guesses.
        SettingError: a confidence outside (0, 1), or no run.
    """
    risk = _risk_of_one(correct, guesses, coins, confidence, runs)

    def refuted(epsilon: float) -> bool:
        """Whether as many right guesses are less probable than the risk under (ε, δ)."""
        right = 1 / (1 + np.exp(-epsilon))
        at_least = bdtrc(np.arange(correct, -1, -1) - 1, guesses, right)
        gained = (at_least[1:] - at_least[0]) / np.arange(1, correct + 1)
        return bool(at_least[0] + 2 * coins * delta * max(gained, default=0.0) <= risk)

    return _largest(refuted, _LARGEST_EPSILON)


def mu_of_guesses(correct: int, guesses: int, coins: int, confidence: float, *, runs: int = 1) -> float:
    """Lower bound on μ of a mechanism that is μ-GDP in every unit, from guessing some of its units' coins.

    Arguments and errors as in `epsilon_of_guesses`; the proof is at the top of this module.
    """
    risk = _risk_of_one(correct, guesses, coins, confidence, runs)
    return _largest(lambda mu: _impossible(mu, correct, guesses, coins, risk), _LARGEST_MU)


def _impossible(mu: float, correct: int, guesses: int, coins: int, probability: float) -> bool:
    """Whether μ-GDP rules out that `correct` guesses or more are right with this probability: s_0 > 1."""
    right, wrong = probability * correct / coins, probability * (guesses - correct) / coins
    whole = guesses / coins
    for number in range(correct - 1, -1, -1):
        if right + wrong > whole:
            return True
        needed = max(wrong, float(ndtr(ndtri(right) - mu)))
        right += number / (guesses - number) * (needed - wrong)
        wrong = needed
    return right + wrong > whole


def _largest(refuted: Callable[[float], bool], limit: float) -> float:
    """The largest loss that is refuted, to 1e-6 of itself and from below; 0 where none is."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, limit
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _risk_of_one(correct: int, guesses: int, coins: int, confidence: float, runs: int) -> float:
    """How improbable the worst run's guesses must be in every single run."""
    if not 0 <= correct <= guesses <= coins or coins < 1:
        raise InputError(f"{correct} of {guesses} guesses right about {coins} coins is impossible.")
    if not 0 < confidence < 1 or runs < 1:
        raise SettingError(f"A bound needs a confidence in (0, 1) and a run, got {confidence!r} and {runs}.")
    return float((1 - confidence) ** (1 / runs))
