"""Lower bounds on the ε of an implementation, obtained by attacking it.

An accountant bounds how much a mechanism leaks *if* it does what its description says. An audit runs the mechanism many
times on two neighbouring inputs, tries to tell them apart, and turns the success into a lower bound on ε that holds
with a stated confidence. A lower bound above the charged ε proves a defect, such as noise of the wrong size or a step
that was not charged. A lower bound below the charged ε proves nothing.

Every bound is *held out*: the decision rule is chosen on the first half of the runs and judged on the second, so that
the search for the best rule costs no confidence. There are two kinds of bound:
- `epsilon`, which holds for any mechanism: ε ≥ log((P[event | one] − δ) / P[event | other]), with Clopper-Pearson
  bounds on both probabilities (Jagielski, Ullman & Oprea 2020);
- `mu`, for mechanisms that are charged as Gaussian: μ ≥ Φ⁻¹(TPR) − Φ⁻¹(FPR), as a μ-GDP mechanism allows no better
  test; with far fewer runs it comes close to the truth (Nasr et al. 2023).

**Guessing coins: one run with many coins instead of many runs.** The contents of each of m units (present or absent, or
one of two contents) are decided by an independent fair coin. The mechanism runs once, and an attacker who sees the
release guesses r of the coins. Privacy limits how many of those guesses can be right, regardless of what else the
attacker knows. Guesses about different coins are dependent through the release, so the number of right guesses is not
binomial in general. Two theorems bound it:

- `epsilon_of_guesses`, for (ε, δ): Steinke, Nasr & Jagielski (2023), Theorem 5.2. At small δ it is weak for Gaussian
  noise, whose rare large losses have to be covered by δ.
- `mu_of_guesses`, for mechanisms that are charged as Gaussian, μ-GDP: after Mahloujifar, Melis & Chaudhuri (2024),
  whose recursion follows from the proof below.

**Proof of the second.** Let W of the r guesses be right, P_k = P[W ≥ k], a_k = E[W; W ≥ k]/m the probability that a
coin picked at random is guessed right and W ≥ k, b_k = E[r − W; W ≥ k]/m that it is guessed wrong and W ≥ k, so
a_k + b_k = (r/m) P_k. Fix the picked coin and all the others. The event that it is guessed as "one" while j of the
*other* guesses are right depends only on the release. If the coin is "one", W = j + 1 in that event and the guess is
right; if it is "other", W = j and it is wrong. Under μ-GDP an event of probability x has probability at least
g(x) = Φ(Φ⁻¹(x) − μ) after the coin is flipped, and g is convex, so by Jensen's inequality over coins

    b_(k−1) ≥ g(a_k)    for every k.                                                                              (1)

Say P_c ≥ p. Let s_c = p, r_c = pc/m, h_c = p(r − c)/m and, for i = c − 1, …, 0,

    h_i = max(h_(i+1), g(r_(i+1))),   r_i = r_(i+1) + i/(r − i) · (h_i − h_(i+1)),   s_i = (r_i + h_i)·m/r.

This is the case in which W = c with probability p, and every smaller value i has the smallest probability that (1)
allows, s_i − s_(i+1). Claim: P_i ≥ s_i and a_i ≥ r_i. At c, a_c ≥ (c/m) P_c. Below c, if h_i = h_(i+1), both follow
because P and a grow as i falls. Otherwise h_i = g(r_(i+1)) ≤ g(a_(i+1)) ≤ b_i, and from Σ_(k>i) P_k = E[W − i; W > i]
follows a_i = i/(r − i)·b_i + r/(m(r − i))·Σ_(k>i) P_k, in which every term is at least its counterpart; so a_i ≥ r_i,
and P_i = (a_i + b_i)·m/r ≥ s_i. Hence s_0 ≤ 1 for every p ≤ P_c: if s_0 > 1, P[W ≥ c] < p. ∎

No recursion can do much better without another assumption: a mechanism may be μ-GDP for each unit and yet reveal many
units together, say in one run out of twenty. So guessing every coin proves less than guessing only those with the
strongest evidence, and several independent runs are worth more than one run with the same total number of coins.

**Several runs.** R runs with separate coins and noise are independent, and P[W ≥ c in all of them] < p^R. So the bound
uses the *worst* run's number of right guesses at p = (1 − confidence)^(1/R); a single run is R = 1.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtrc, betaincinv, ndtr, ndtri

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event, UnsupportedEventError
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from terrine.privacy.accounting.pricing import price

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Release(Protocol):
    """Output of one run of a mechanism, and its charged privacy event."""

    @property
    def labels(self) -> Integers:
        """Released labels [queries], −1 for unanswered queries."""

    @property
    def histograms(self) -> Floats | None:
        """Noisy histograms [queries, classes], or None if the mechanism does not release them."""

    @property
    def event(self) -> Event:
        """Charged privacy event."""


@dataclass(frozen=True)
class Bound:
    """Lower bounds on the privacy loss, each at `confidence`, from `runs` held-out runs on each input.

    Args:
        epsilon: Lower bound on ε at δ, for any mechanism.
        mu: Lower bound on μ, for a mechanism charged as Gaussian.
        confidence: Probability that the bound of a sound mechanism does not exceed the true loss.
        runs: Held-out runs on each of the two inputs.
    """

    epsilon: float
    mu: float
    delta: float
    confidence: float
    runs: int


@dataclass(frozen=True)
class Charge:
    """Charged cost of an audited release: ε at δ, and μ or None if its event is not Gaussian."""

    mu: float | None
    epsilon: float
    delta: float

    @classmethod
    def of(cls, events: Iterable[Event], delta: float) -> Self:
        """Return the charge of the costliest of some events."""
        known = set(events)
        try:
            mu = math.sqrt(max(mu_squared(event) for event in known))
        except UnsupportedEventError:
            return cls(None, max(price(event, delta) for event in known), delta)
        return cls(mu, epsilon_of(mu, delta), delta)


@dataclass(frozen=True)
class Verdict:
    """Lower bounds found by an audit, and the charged ε and μ.

    Args:
        epsilon_charged: ε at δ of the costliest run.
        mu_charged: μ of the costliest run, or None if it is not Gaussian.
    """

    bound: Bound
    epsilon_charged: float
    mu_charged: float | None

    @property
    def caught(self) -> bool:
        """True if a lower bound exceeds the charged cost, which proves a defect at the bound's confidence."""
        return self.bound.epsilon > self.epsilon_charged or (
            self.mu_charged is not None and self.bound.mu > self.mu_charged
        )


def clopper_pearson(successes: ArrayLike, trials: int, confidence: float) -> tuple[Floats, Floats]:
    """Return one-sided (lower, upper) bounds on a probability at `confidence`, from successes in independent trials."""
    if trials < 1 or not 0 < confidence < 1:
        raise SettingError(f"A bound needs trials and a confidence in (0, 1), got {trials} and {confidence!r}.")
    hits = np.asarray(successes, dtype=np.float64)
    risk = 1 - confidence
    lower = np.where(hits > 0, betaincinv(np.maximum(hits, 1), trials - hits + 1, risk), 0.0)
    upper = np.where(hits < trials, betaincinv(hits + 1, np.maximum(trials - hits, 1), 1 - risk), 1.0)
    return lower, upper


def audit_scores(one: ArrayLike, other: ArrayLike, delta: float, confidence: float = 0.95) -> Bound:
    """Compute lower bounds on the privacy loss from one score per run; scores of `other` should tend to be larger.

    Args:
        one: Scores of independent runs on one input [runs].
        other: Scores of independent runs on its neighbour [runs].
        delta: δ at which ε is bounded.
        confidence: Probability with which each bound holds, in (0, 1).

    Raises:
        InputError: fewer than four runs, different numbers of them, or scores that are not finite.
        SettingError: δ or a confidence outside (0, 1).
    """
    first, second = (np.asarray(scores, dtype=np.float64) for scores in (one, other))
    if first.ndim != 1 or first.shape != second.shape or len(first) < 4:
        raise InputError(
            f"An audit compares at least four runs on each input, as many on either, got {first.shape} and "
            f"{second.shape}."
        )
    if not (np.all(np.isfinite(first)) and np.all(np.isfinite(second))):
        raise InputError("The scores of an audit must be finite.")
    if not 0 < delta < 1:
        raise SettingError(f"delta must lie strictly between 0 and 1, got {delta!r}.")
    half = len(first) // 2
    runs = len(first) - half
    thresholds = np.unique(np.concatenate((first[:half], second[:half])))
    epsilons, mus = _bounds(first[:half], second[:half], thresholds, delta, confidence)
    # Two rules, one for each kind of bound. Each is judged once, on held-out runs.
    sides, best = np.unravel_index(np.argmax(epsilons), epsilons.shape)
    epsilon = _bounds(first[half:], second[half:], thresholds[[best]], delta, confidence)[0][sides, 0]
    best = np.argmax(mus)
    mu = _bounds(first[half:], second[half:], thresholds[[best]], delta, confidence)[1][0]
    return Bound(max(0.0, float(epsilon)), max(0.0, float(mu)), delta, confidence, runs)


def audit_mechanism(
    run: Callable[[Integers], Release],
    one: ArrayLike,
    other: ArrayLike,
    *,
    queries: int,
    runs: int,
    delta: float,
    confidence: float = 0.95,
) -> Verdict:
    """Attack a mechanism on one pair of neighbouring histograms, asked `queries` times in every run.

    The attacker sees the release: which queries were answered, their labels, and noisy histograms if released. Labels
    are scored by their log likelihood ratio, with frequencies from the runs on which the rule is chosen.

    Args:
        run: Runs the mechanism once on histograms [queries, classes], with fresh noise.
        one: One histogram of votes, [classes].
        other: The neighbouring histogram, [classes], in which one vote is moved.
        queries: Copies of the histogram in one run; more copies reveal smaller defects. With one copy, all runs are
            made in one call, whose answers to different queries must be independent.
        runs: Runs on each input, half of them held out.
        delta: δ at which ε is bounded.
        confidence: Probability with which each bound holds, in (0, 1).

    Raises:
        InputError: The two histograms differ by more than one moved vote.
        SettingError: too few runs or queries.
    """
    pair = _neighbours(one, other)
    if queries < 1 or runs < 20:
        raise SettingError(f"An audit takes at least one query and 20 runs, got {queries} and {runs}.")
    releases = [_releases(run, histogram, queries, runs) for histogram in pair]
    one_scores, other_scores = _release_scores(releases[0], releases[1], pair[1] - pair[0])
    charge = Charge.of((release.event for side in releases for release in side), delta)
    return Verdict(audit_scores(one_scores, other_scores, delta, confidence), charge.epsilon, charge.mu)


def _bounds(one: Floats, other: Floats, thresholds: Floats, delta: float, confidence: float) -> tuple[Floats, Floats]:
    """Return ε [2, thresholds] from scores at or above, and below, each threshold, and μ [thresholds]."""
    # Each statement bounds two probabilities, so each bound gets half of the risk.
    each = 1 - (1 - confidence) / 2
    low, high = [], []
    for scores in (one, other):
        above = len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left")
        bounds = clopper_pearson(above, len(scores), each)
        low.append(bounds[0])
        high.append(bounds[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        upper_event = np.log(np.maximum(low[1] - delta, 0.0)) - np.log(high[0])
        lower_event = np.log(np.maximum(1 - high[0] - delta, 0.0)) - np.log(1 - low[1])
        mu = ndtri(low[1]) - ndtri(high[0])
    return np.array([upper_event, lower_event]), np.asarray(mu)


@dataclass(frozen=True)
class _OneQuery:
    """One query of a larger release, as a separate release."""

    labels: Integers
    histograms: Floats | None
    event: Event


def _releases(run: Callable[[Integers], Release], histogram: Integers, queries: int, runs: int) -> Sequence[Release]:
    if queries > 1:
        return [run(np.tile(histogram, (queries, 1))) for _ in range(runs)]
    event = run(histogram[None]).event
    whole = run(np.tile(histogram, (runs, 1)))
    parts = np.arange(runs)[:, None]
    labels, noisy = whole.labels[parts], whole.histograms
    return [_OneQuery(labels[i], None if noisy is None else noisy[parts[i]], event) for i in range(runs)]


def _release_scores(one: Sequence[Release], other: Sequence[Release], moved: Integers) -> tuple[Floats, Floats]:
    """Score each run on each input; a larger score means that the run looks like one on the other input."""
    if one[0].histograms is None:
        one_labels, other_labels = (np.array([release.labels for release in side]) for side in (one, other))
        return _label_scores(one_labels, other_labels, len(moved))
    # The log likelihood ratio under Gaussian noise is linear in the direction in which the vote moved.
    first, second = (
        np.array([np.sum(np.asarray(release.histograms) @ moved) for release in side]) for side in (one, other)
    )
    return first, second


def _label_scores(one: Integers, other: Integers, classes: int) -> tuple[Floats, Floats]:
    """Return each run's log likelihood ratio from labels [runs, queries]; frequencies are those of the first half."""
    half = len(one) // 2
    # Outcomes are the classes and "unanswered". Half a count each keeps one unseen outcome from deciding the score.
    counts = [np.bincount(labels[:half].ravel() + 1, minlength=classes + 1) + 0.5 for labels in (one, other)]
    ratio = np.log(counts[1] / counts[1].sum()) - np.log(counts[0] / counts[0].sum())
    return ratio[one + 1].sum(axis=1), ratio[other + 1].sum(axis=1)


def _neighbours(one: ArrayLike, other: ArrayLike) -> tuple[Integers, Integers]:
    first, second = np.asarray(one), np.asarray(other)
    if first.dtype.kind not in "iu" or first.shape != second.shape or first.ndim != 1:
        raise InputError("An audit compares two histograms of integers [classes] of the same length.")
    pair = first.astype(np.int64), second.astype(np.int64)
    moved = np.abs(pair[1] - pair[0])
    if min(pair[0].min(), pair[1].min()) < 0 or pair[0].sum() != pair[1].sum() or moved.sum() != 2:
        raise InputError("Neighbouring histograms differ by exactly one moved vote: one count up by 1, one down by 1.")
    return pair


_LARGEST_EPSILON, _LARGEST_MU = 50.0, 40.0


def epsilon_of_guesses(
    correct: int, guesses: int, coins: int, delta: float, confidence: float, *, runs: int = 1
) -> float:
    """Return a lower bound on ε from guessing some coins of a run (Steinke, Nasr & Jagielski 2023, Theorem 5.2).

    Args:
        correct: Number of correct guesses in the run with the fewest.
        guesses: Number of guesses in each run, fixed in advance. The choice of coins may depend on the release.
        coins: Number of units in each run whose contents were decided by a coin.
        delta: δ at which ε is bounded.
        confidence: Probability with which the bound holds, in (0, 1).
        runs: Number of runs, of which `correct` is the worst.

    Raises:
        InputError: impossible numbers of guesses.
        SettingError: a confidence outside (0, 1), or no run.
    """
    risk = _risk_of_one(correct, guesses, coins, confidence, runs)

    def refuted(epsilon: float) -> bool:
        """Return whether at least `correct` right guesses have a probability of at most the risk under (ε, δ)."""
        right = 1 / (1 + np.exp(-epsilon))
        at_least = bdtrc(np.arange(correct, -1, -1) - 1, guesses, right)
        gained = (at_least[1:] - at_least[0]) / np.arange(1, correct + 1)
        return bool(at_least[0] + 2 * coins * delta * max(gained, default=0.0) <= risk)

    return _largest(refuted, _LARGEST_EPSILON)


def mu_of_guesses(correct: int, guesses: int, coins: int, confidence: float, *, runs: int = 1) -> float:
    """Return a lower bound on μ of a mechanism that is μ-GDP for every unit, from guessing some of the units' coins.

    Arguments and errors as in `epsilon_of_guesses`; the proof is at the top of this module.
    """
    risk = _risk_of_one(correct, guesses, coins, confidence, runs)
    return _largest(lambda mu: _impossible(mu, correct, guesses, coins, risk), _LARGEST_MU)


def _impossible(mu: float, correct: int, guesses: int, coins: int, probability: float) -> bool:
    """Return whether μ-GDP rules out `correct` or more right guesses with this probability: s_0 > 1."""
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
    """Return the largest refuted loss, from below to a relative tolerance of 1e-6, or 0 if none is refuted."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, limit
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _risk_of_one(correct: int, guesses: int, coins: int, confidence: float, runs: int) -> float:
    """Return the risk allowed in each single run if the bound uses the worst of `runs` independent runs."""
    if not 0 <= correct <= guesses <= coins or coins < 1:
        raise InputError(f"{correct} of {guesses} guesses right about {coins} coins is impossible.")
    if not 0 < confidence < 1 or runs < 1:
        raise SettingError(f"A bound needs a confidence in (0, 1) and a run, got {confidence!r} and {runs}.")
    return float((1 - confidence) ** (1 / runs))
