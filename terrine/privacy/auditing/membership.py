"""Membership inference: detect which records a model was trained on (LiRA, Carlini et al. 2022).

The attack needs a few dozen *shadow runs* of the whole pipeline at small scale, each on a random half of the records.
For one record, the model's confidence in its true label is roughly normal over the runs that included the record, and
roughly normal, with a different mean, over those that excluded it. An attacked run is judged by the ratio of the two
likelihoods, fitted on the other runs. Privacy implies that the attack does hardly better than chance; a strong attack
proves that the guarantee is violated.

The lower bound on ε uses the theorem for one run with many coins (`terrine.privacy.auditing.audit`), one coin per
record. Guesses are made only for the records with the most extreme ratios. The attack measures the leakage of
*ordinary* records through a student, which is small even without noise. See `terrine.privacy.auditing.canaries` for the
worst case.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.errors import InputError, SettingError
from terrine.privacy.auditing.audit import epsilon_of_guesses

Floats = NDArray[np.float64]


_REPLICATES = 200


class Estimate(NamedTuple):
    """Estimate with a two-sided bootstrap confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Attack:
    """Success of membership inference, over all runs in turn.

    Intervals are quantiles of a pigeonhole bootstrap, which resamples runs and records (Owen 2007).

    Args:
        auc: Area under the ROC curve: 0.5 is chance.
        members: Share of the members found at each requested false positive rate.
        others: Share of the non-members found if members are mistaken for non-members at the same rates.
        epsilon: Lower bound on ε, holding at `confidence`.
        delta: δ of the lower bound on ε.
    """

    auc: Estimate
    members: dict[float, Estimate]
    others: dict[float, Estimate]
    epsilon: float
    delta: float
    confidence: float


def logit_scores(probabilities: ArrayLike, labels: ArrayLike) -> Floats:
    """Return log(p/(1 − p)) of the true label's probability p [examples], which is roughly normal over runs.

    Args:
        probabilities: A model's class probabilities [examples, classes].
        labels: True labels [examples].
    """
    table, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if table.ndim != 2 or truth.shape != (len(table),):
        raise InputError(f"Probabilities must be [examples, classes] and labels [examples], got {table.shape}.")
    right = np.take_along_axis(table, truth[:, None], axis=1)[:, 0]
    # The other classes' sum is more accurate than 1 − p when p is close to 1.
    wrong = np.where(np.arange(table.shape[1]) == truth[:, None], 0.0, table).sum(axis=1)
    tiny = np.finfo(np.float64).tiny
    return np.asarray(np.log(np.maximum(right, tiny)) - np.log(np.maximum(wrong, tiny)))


def likelihood_ratios(scores: ArrayLike, member: ArrayLike) -> Floats:
    """Return log likelihood ratios of membership [runs, records], each run judged by all the others.

    If fewer than two of the other runs included a record, or fewer than two excluded it, its ratio is 0.

    Args:
        scores: The model's score of each record in each run [runs, records], from `logit_scores`.
        member: Whether the record was in the run's data [runs, records].

    Raises:
        InputError: Shapes differ, scores are not finite, or no record is in enough runs and missing from enough others.
    """
    values, inside = np.asarray(scores, dtype=np.float64), np.asarray(member)
    if values.ndim != 2 or values.shape != inside.shape or inside.dtype.kind != "b":
        raise InputError(
            f"Scores and membership must be [runs, records], numbers and booleans, got {values.shape} and "
            f"{inside.shape} of {inside.dtype}."
        )
    if not np.all(np.isfinite(values)):
        raise InputError("The scores of an attack must be finite.")
    # Only the other runs decide which records are known: membership in the attacked run must have no influence.
    known = np.ones(values.shape, dtype=np.bool_)
    for group in (inside, ~inside):
        known &= group.sum(axis=0) - group >= 2
    if not known.any(axis=1).all():
        raise InputError("No record is in at least two of the other runs and out of at least two: run more shadows.")
    ratio = np.zeros_like(values)
    values = values - values.mean(axis=0)
    for sign, group in ((1.0, inside), (-1.0, ~inside)):
        own = np.where(group, values, 0.0)
        count = np.where(known, group.sum(axis=0) - group, 2)
        mean = (own.sum(axis=0) - own) / count
        squares = np.square(own).sum(axis=0) - np.square(own) - count * np.square(mean)
        # With few shadow runs, variances of single records are too noisy: the group shares one, as in the paper.
        freedom = np.where(known, count - 1, 0).sum(axis=1, keepdims=True)
        variance = np.where(known, squares, 0.0).sum(axis=1, keepdims=True) / freedom
        variance = np.maximum(variance, np.finfo(np.float64).tiny)
        ratio -= sign * (np.square(values - mean) / variance + np.log(variance)) / 2
    return np.where(known, ratio, 0.0)


def attack(
    scores: ArrayLike,
    member: ArrayLike,
    *,
    delta: float = 1e-5,
    confidence: float = 0.95,
    fprs: tuple[float, ...] = (0.001, 0.01, 0.1),
    guess_share: float = 0.1,
) -> Attack:
    """Attack every run with the others as its shadows.

    Args:
        scores: [runs, records], from `logit_scores`.
        member: bool [runs, records]; each entry drawn by an independent fair coin for the bound on ε to hold.
        delta: δ of the bound on ε.
        confidence: Level of the bound on ε and of the intervals of the rates, in (0, 1).
        fprs: False positive rates at which to compute true positive rates, for members and for non-members.
        guess_share: Share of the records whose membership is guessed in each run.

    Raises:
        InputError: see `likelihood_ratios`.
        SettingError: a δ, confidence or share outside (0, 1).
    """
    for name, value in (("delta", delta), ("confidence", confidence), ("guess_share", guess_share)):
        if not 0 < value < 1:
            raise SettingError(f"{name} must lie strictly between 0 and 1, got {value!r}.")
    inside = np.asarray(member)
    ratio = likelihood_ratios(scores, inside)
    generator, drawn = np.random.default_rng(0), []
    for _ in range(_REPLICATES):
        chosen = np.ix_(*(generator.integers(length, size=length) for length in ratio.shape))
        drawn.append(_rates(ratio[chosen], inside[chosen], fprs))
    tail = (1 - confidence) / 2
    low, high = np.nanquantile(drawn, (tail, 1 - tail), axis=0).tolist()
    auc, *rates = [Estimate(*each) for each in zip(_rates(ratio, inside, fprs), low, high, strict=True)]
    members, others = (dict(zip(fprs, part, strict=True)) for part in (rates[: len(fprs)], rates[len(fprs) :]))
    runs, records = inside.shape
    guesses = max(1, int(guess_share * records))
    # Runs share shadows, so each is judged separately. The best bound counts, corrected for the number of runs.
    each = 1 - (1 - confidence) / runs
    epsilon = max(
        epsilon_of_guesses(_correct(ratio[run], inside[run], guesses), guesses, records, delta, each)
        for run in range(runs)
    )
    return Attack(auc, members, others, epsilon, delta, confidence)


def _rates(ratio: Floats, inside: NDArray[np.bool_], fprs: tuple[float, ...]) -> list[float]:
    """Return the area under the ROC curve and, at each false positive rate, the shares of members and others found.

    The shares are NaN without members or without non-members.
    """
    positive, negative = np.sort(ratio[inside]), np.sort(ratio[~inside])
    if not len(positive) or not len(negative):
        return [np.nan] * (1 + 2 * len(fprs))
    # The probability that a member scores above a non-member, ties counting half.
    below = np.searchsorted(negative, positive, side="left") + np.searchsorted(negative, positive, side="right")
    found = [float(below.mean() / (2 * len(negative)))]
    for wanted, unwanted in ((positive, negative), (-negative[::-1], -positive[::-1])):
        for fpr in fprs:
            allowed = int(fpr * len(unwanted))
            threshold = unwanted[len(unwanted) - allowed - 1] if allowed < len(unwanted) else -np.inf
            found.append(float(np.mean(wanted > threshold)))
    return found


def _correct(ratio: Floats, inside: NDArray[np.bool_], guesses: int) -> int:
    """Return the number of right guesses about the records whose ratios are farthest from the run's median."""
    centred = ratio - np.median(ratio)
    chosen = np.argsort(-np.abs(centred), kind="stable")[:guesses]
    return int(np.sum((centred[chosen] > 0) == inside[chosen]))
