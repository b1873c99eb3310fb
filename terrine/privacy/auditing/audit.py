"""Is the noise there? Lower bounds on ε of what was implemented, by attacking it.

An accountant says how much a mechanism leaks *if* it does what its description says. An audit runs the mechanism many
times on two neighbouring inputs, tries to tell them apart, and turns the success into a lower bound on ε that holds
with a stated confidence. A lower bound above what was charged proves a defect: noise of the wrong size, a step that was
not charged. A lower bound below it proves nothing.

Every bound is *held out*: the decision rule is chosen on the first half of the runs and judged on the second, so that
the search for the best rule costs no confidence. Two kinds come out of one rule:
- `epsilon`, which holds for any mechanism: ε ≥ log((P[event | one] − δ) / P[event | other]), with Clopper-Pearson
  bounds on both probabilities (Jagielski, Ullman & Oprea 2020);
- `mu`, for mechanisms that are charged as Gaussian: μ ≥ Φ⁻¹(TPR) − Φ⁻¹(FPR), as a μ-GDP mechanism allows no better
  test; with far fewer runs it comes close to the truth (Nasr et al. 2023).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event, UnsupportedEventError
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from terrine.privacy.accounting.pricing import price

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Release(Protocol):
    """What one run of a mechanism releases, and what it claims to have cost."""

    @property
    def labels(self) -> Integers:
        """[queries], −1 where unanswered."""

    @property
    def histograms(self) -> Floats | None:
        """Noisy histograms [queries, classes], where the mechanism releases them."""

    @property
    def event(self) -> Event:
        """What was charged."""


@dataclass(frozen=True)
class Bound:
    """Lower bounds on the privacy loss, each at `confidence`, from `runs` held-out runs on either input.

    Args:
        epsilon: Lower bound on ε at δ, for any mechanism.
        mu: Lower bound on μ, for a mechanism charged as Gaussian.
        confidence: Probability that a bound of a sound mechanism is not above its true value.
        runs: Held-out runs on each of the two inputs.
    """

    epsilon: float
    mu: float
    delta: float
    confidence: float
    runs: int


@dataclass(frozen=True)
class Charge:
    """ε at δ of what was charged, and its μ; None if it is not charged as Gaussian."""

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
    """What an audit found and what had been charged.

    Args:
        epsilon_charged: ε at δ of the costliest run.
        mu_charged: μ of the costliest run; None when it is not Gaussian.
    """

    bound: Bound
    epsilon_charged: float
    mu_charged: float | None

    @property
    def caught(self) -> bool:
        """Whether the mechanism provably leaks more than was charged, at the bound's confidence."""
        return self.bound.epsilon > self.epsilon_charged or (
            self.mu_charged is not None and self.bound.mu > self.mu_charged
        )


def clopper_pearson(successes: ArrayLike, trials: int, confidence: float) -> tuple[Floats, Floats]:
    """(lower, upper) bounds on a probability, each one-sided at `confidence`, from successes in independent trials."""
    if trials < 1 or not 0 < confidence < 1:
        raise SettingError(f"A bound needs trials and a confidence in (0, 1), got {trials} and {confidence!r}.")
    hits = np.asarray(successes, dtype=np.float64)
    risk = 1 - confidence
    lower = np.where(hits > 0, betaincinv(np.maximum(hits, 1), trials - hits + 1, risk), 0.0)
    upper = np.where(hits < trials, betaincinv(hits + 1, np.maximum(trials - hits, 1), 1 - risk), 1.0)
    return lower, upper


def audit_scores(one: ArrayLike, other: ArrayLike, delta: float, confidence: float = 0.95) -> Bound:
    """Lower bounds on the privacy loss from one score per run, where `other`'s tend to be larger.

    Args:
        one: Scores of independent runs on one input [runs].
        other: Scores of independent runs on its neighbour [runs].

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
    # Two rules: the best for either kind of bound. Each is judged once, on runs it has not seen.
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

    The attacker sees what is released: which queries were answered and how, and noisy histograms where there are any.
    Labels are scored by their log likelihood ratio, with frequencies from the runs on which the rule is chosen.

    Args:
        run: Runs the mechanism once on histograms [queries, classes], with fresh noise.
        one: A histogram [classes].
        other: Its neighbour [classes]: at most one vote moved.
        queries: Copies of the histogram in one run: more show a smaller defect. With one, all runs are made in one
            call, whose answers to different queries must be independent.
        runs: Runs on either input, half of them held out.
        delta: δ at which ε is bounded.

    Raises:
        InputError: histograms that are not neighbours.
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
    """ε [2, thresholds], from scores at or above and below each threshold, and μ [thresholds]."""
    # Two probabilities are bounded for one statement, so each gets half of the risk.
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
    """One query of a larger release, as a release of its own."""

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
    """A score of each run on either input, larger where it looks like the other's."""
    if one[0].histograms is None:
        one_labels, other_labels = (np.array([release.labels for release in side]) for side in (one, other))
        return _label_scores(one_labels, other_labels, len(moved))
    # The log likelihood ratio of Gaussian noise is linear, in the direction that the vote moved.
    first, second = (
        np.array([np.sum(np.asarray(release.histograms) @ moved) for release in side]) for side in (one, other)
    )
    return first, second


def _label_scores(one: Integers, other: Integers, classes: int) -> tuple[Floats, Floats]:
    """Log likelihood ratio of each run's labels [runs, queries] on either input, frequencies from the first half."""
    half = len(one) // 2
    # One outcome more than classes: unanswered. Half a count each keeps an unseen outcome from deciding alone.
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
