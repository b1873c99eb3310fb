"""Released answers and their likelihoods under a student's scores: noisy histograms or labels, of one or more findings.

The likelihoods, per query, with scores f(x) and p = softmax(f(x)):

- `histogram_loss`: a released histogram is h = n + N(0, σ²I). Its expected share of votes n/N is modelled as p, so the
  negative log-likelihood is ‖h/N − p‖² / 2(σ/N)² (up to a constant).
- `boundary_loss`: the same for the votes above each boundary between ordered classes (`ordered_answers`).
- `label_loss`: cross-entropy with the label.
- `corrected_loss`: −log (Tᵀ p)_label with the transition matrix T of forward correction (`transition_matrix`).

With several findings, answers are questions with the classes no and yes (`terrine.aggregation.votes`), and the
student's score s of a finding gives p = σ(s), the probability of yes. Likelihoods add up over findings, and a question
without an answer adds nothing:

- `share_loss`: noisy counts (h₀, h₁), each with noise of variance σ², estimate the share of yes c/T by (h₁ − h₀ +
  T)/2T, which has variance σ²/2T²: the negative log-likelihood is (that − p)²·(T/σ)².
- `coin_loss`: a released label is yes with probability r = p·(1 − w) + (1 − p)·w, where w is the probability that noise
  flips the answer of unanimous teachers (`transition_matrix`), or 0: the Bernoulli negative log-likelihood.

This module is post-processing of a release: it reads no private data and costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import log_ndtr
from torch import Tensor

from terrine.aggregation.votes import ANSWERS
from terrine.errors import InputError, SettingError

if TYPE_CHECKING:
    from terrine.aggregation.mechanism import Mechanism
    from terrine.students.student import Student

_LEAST = 1e-7
_REACH, _POINTS = 12.0, 4001  # the trapezium rule is exact to rounding for integrands that vanish on both sides

Loss = Callable[[Tensor, Tensor], Tensor]
"""(scores [B, classes], targets [B, classes]) -> negative log-likelihood of each query [B]."""


@dataclass(frozen=True, eq=False)
class ReleasedAnswers:
    """Released answers about some queries, with their likelihood.

    Attributes:
        targets: float32 [answers, classes]: shares of votes (noise included), or labels as one-hot rows. With several
            findings [answers, findings, 2]: the share of yes or the label, and 1 if it was answered. With ordered
            classes [answers, classes − 1]: shares of votes above each boundary.
        loss: Negative log-likelihood of the answers given the student's scores.
        described: The likelihood as JSON values.
    """

    targets: np.ndarray
    loss: Loss
    described: dict[str, Any] = field(default_factory=dict)
    ordered: bool = False

    def __post_init__(self) -> None:
        if self.targets.ndim not in (2, 3) or not np.isfinite(self.targets).all():
            raise InputError("Released answers must be finite numbers [answers, classes].")

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def classes(self) -> int:
        """Number of classes, or of boundaries between them."""
        return self.targets.shape[1]

    def at(self, positions: np.ndarray) -> ReleasedAnswers:
        """Return the answers at these positions."""
        return replace(self, targets=self.targets[positions])


def histogram_loss(scores: Tensor, shares: Tensor, weight: float) -> Tensor:
    """Return weight · ‖softmax(scores) − shares‖² per query [B]; the weight of a likelihood is ½ (N/σ)²."""
    return (torch.softmax(scores, dim=1) - shares).square().sum(1) * weight


def boundary_loss(scores: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """Return Σ weights · (σ(scores) − shares)² over the boundaries between classes of each query, [B]."""
    return ((torch.sigmoid(scores) - shares).square() * weights.to(scores)).sum(1)


label_loss: Loss = partial(F.cross_entropy, reduction="none")
"""The cross-entropy per query [B] with labels as one-hot rows [B, classes]."""


def corrected_loss(scores: Tensor, one_hot: Tensor, transition: np.ndarray) -> Tensor:
    """Return −log (Tᵀ softmax(scores))_label per query [B]; transition: T [classes, classes], rows sum to one."""
    with np.errstate(divide="ignore"):  # no noise, no wrong label: log 0 is what it should be
        log_transition = torch.from_numpy(np.log(transition)).to(scores)
    released = torch.logsumexp(torch.log_softmax(scores, dim=1)[:, :, None] + log_transition, dim=1)
    return -(released.clamp(min=-1e4) * one_hot).sum(1)


def share_loss(scores: Tensor, targets: Tensor, weight: float) -> Tensor:
    """Return Σ weight · (σ(score) − share)² over the answered findings of each image, [B]; targets [B, K, 2]."""
    shares, answered = targets.unbind(2)
    return ((torch.sigmoid(scores) - shares).square() * answered).sum(1) * weight


def coin_loss(scores: Tensor, targets: Tensor, wrong: float = 0.0) -> Tensor:
    """Return −log of the released labels' probability over the answered findings of each image, [B].

    Noise flips a label with probability `wrong`.
    """
    labels, answered = targets.unbind(2)
    yes = wrong + (1 - 2 * wrong) * torch.sigmoid(scores)
    yes = yes.clamp(_LEAST, 1 - _LEAST)
    return -((labels * yes.log() + (1 - labels) * (1 - yes).log()) * answered).sum(1)


def transition_matrix(sigma: float, teachers: int, classes: int) -> np.ndarray:
    """Return T, float64 [classes, classes]: T[i, j] is the probability that a unanimous vote for i is released as j.

    A released label is argmax(n + N(0, σ²I)). If all N teachers vote for class i, n is N in place i and 0 elsewhere,
    and with independent standard normal z the label is i exactly when z_i + N/σ exceeds the other m − 1 of them:

        P(i → i) = ∫ φ(z) Φ(z + N/σ)^(m−1) dz,      P(i → j) = (1 − P(i → i)) / (m − 1)  for j ≠ i, by symmetry.

    The matrix depends only on σ, N and m, which are published with the release, so it costs no privacy. The matrix
    describes the *least* noise a label can have: teachers that disagree leave a smaller gap than N, and how often they
    disagree is private. Source: Patrini et al. 2017, section 4 (forward correction).

    Args:
        sigma: Standard deviation of the noise on each count, in votes.
        teachers: N, the number of teachers.
        classes: m, the number of classes.

    Raises:
        SettingError: sigma <= 0, no teacher, or fewer than two classes.
    """
    if not 0 < sigma < math.inf or teachers < 1 or classes < 2:
        raise SettingError(
            f"forward correction: noise of {sigma} votes, {teachers} teachers and {classes} classes; give a positive "
            "noise, at least one teacher and at least two classes."
        )
    z = np.linspace(-_REACH, _REACH, _POINTS)
    log_density = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    right = np.exp(log_density + (classes - 1) * log_ndtr(z + teachers / sigma)).sum() * (z[1] - z[0])
    right = min(1.0, float(right))
    matrix = np.full((classes, classes), (1 - right) / (classes - 1))
    np.fill_diagonal(matrix, right)
    return matrix


def released_answers(
    mechanism: Mechanism,
    settings: Student,
    *,
    answered: np.ndarray,
    labels: np.ndarray,
    histograms: np.ndarray | None,
    teachers: int,
    classes: int,
    ordered: bool = False,
) -> tuple[np.ndarray, ReleasedAnswers]:
    """Return the numbers of the answered queries, int64, and their answers in the same order, for a student.

    With several findings, the arrays are by question, [queries · findings].

    Args:
        mechanism: Mechanism that produced the answers.
        settings: Settings of the student.
        answered: bool [queries].
        labels: int64 [queries].
        histograms: Noisy counts [queries, classes] of a mechanism that reveals them.
        teachers: Number of teachers.
        classes: Number of classes.
        ordered: Whether classes are modelled as ordered.

    Raises:
        InputError: no query was answered.
    """
    known = np.asarray(answered, dtype=bool).reshape(-1, mechanism.findings)
    rows = np.flatnonzero(known.any(axis=1))
    if not len(rows):
        raise InputError(
            "No query was answered, so there is nothing to train a student on. Lower aggregation.threshold, raise "
            "sigma or epsilon."
        )
    if mechanism.findings > 1:
        return rows, _answers_of_findings(mechanism, settings, known, labels, histograms, teachers).at(rows)
    if mechanism.reveals == "histogram" and histograms is not None:
        make = ordered_answers if ordered else histogram_answers
        return rows, make(histograms[rows], teachers, mechanism.deviation)
    transition = transition_matrix(mechanism.deviation, teachers, classes) if settings.forward_correction else None
    return rows, label_answers(labels[rows], classes, transition=transition)


def histogram_answers(histograms: np.ndarray, teachers: int, sigma: float) -> ReleasedAnswers:
    """Return noisy histograms [queries, classes], votes of `teachers` plus noise of deviation `sigma`, as answers.

    Raises SettingError for teachers < 1 or sigma <= 0, and InputError for numbers that are not finite.
    """
    if teachers < 1 or not 0 < sigma < float("inf"):
        raise SettingError(f"student: {teachers} teachers with noise of {sigma} votes; both must be positive.")
    shares = np.asarray(histograms, np.float64) / teachers
    loss = partial(histogram_loss, weight=0.5 * (teachers / sigma) ** 2)
    described = {"answers": "histograms", "teachers": int(teachers), "sigma": float(sigma)}
    return ReleasedAnswers(shares.astype(np.float32), loss, described)


def ordered_answers(histograms: np.ndarray, teachers: int, sigma: float) -> ReleasedAnswers:
    """Return noisy histograms [queries, classes] of ordered classes as answers about the boundaries between them.

    Votes sum to `teachers`, so any excess of the sum of counts is noise, and is subtracted evenly. The m upper counts
    of K then contain the votes above a boundary and noise of variance σ²·m·(1 − m/K). Boundaries are treated as
    separate answers with these variances, although their noise is correlated: a composite likelihood (Varin et al.
    2011). Raises the errors of `histogram_answers`.
    """
    plain, classes = histogram_answers(histograms, teachers, sigma), histograms.shape[1]
    counts = np.asarray(histograms, np.float64)
    counts = counts - (counts.sum(axis=1, keepdims=True) - teachers) / classes
    above = np.cumsum(counts[:, ::-1], axis=1)[:, -2::-1] / teachers
    upper = np.arange(classes - 1, 0, -1)
    weights = 0.5 * (teachers / sigma) ** 2 / (upper * (1 - upper / classes))
    loss = partial(boundary_loss, weights=torch.from_numpy(weights))
    return ReleasedAnswers(
        above.astype(np.float32), loss, plain.described | {"answers": "ordered histograms"}, ordered=True
    )


def label_answers(labels: np.ndarray, classes: int, *, transition: np.ndarray | None = None) -> ReleasedAnswers:
    """Return released labels [queries], 0 .. classes - 1, as answers, corrected by a transition matrix if given.

    Raises InputError for a label that is not in 0 .. classes - 1.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or (len(labels) and not (labels.min() >= 0 and labels.max() < classes)):
        raise InputError(f"labels: one number from 0 to {classes - 1} per query expected, in an array [queries].")
    targets = np.eye(classes, dtype=np.float32)[labels]
    if transition is None:
        return ReleasedAnswers(targets, label_loss, {"answers": "labels"})
    if transition.shape != (classes, classes):
        raise InputError(f"transition: a matrix of shape {transition.shape} was given for {classes} classes.")
    corrected = partial(corrected_loss, transition=transition)
    described = {"answers": "labels", "forward_correction": np.round(transition, 12).tolist()}
    return ReleasedAnswers(targets, corrected, described)


def _answers_of_findings(
    mechanism: Mechanism,
    settings: Student,
    known: np.ndarray,
    labels: np.ndarray,
    histograms: np.ndarray | None,
    teachers: int,
) -> ReleasedAnswers:
    """Return answers about several findings; known: bool [images, findings], whether each was answered."""
    described = {"answers": "labels", "findings": mechanism.findings}
    if mechanism.reveals == "histogram" and histograms is not None:
        values = (histograms[:, 1] - histograms[:, 0] + teachers) / (2 * teachers)
        weight = (teachers / mechanism.deviation) ** 2
        loss: Loss = partial(share_loss, weight=weight)
        described |= {"answers": "histograms", "teachers": int(teachers), "sigma": float(mechanism.deviation)}
    else:
        wrong = 0.0
        if settings.forward_correction:
            wrong = float(transition_matrix(mechanism.deviation, teachers, len(ANSWERS))[0, 1])
        loss, values = partial(coin_loss, wrong=wrong), labels
        described |= {"wrong": wrong}
    values = np.where(known, np.asarray(values, dtype=np.float64).reshape(known.shape), 0.0)
    return ReleasedAnswers(np.stack([values, known], axis=2).astype(np.float32), loss, described)
