"""Released answers about several findings of an image, and how likely a student with a score for each makes them.

An image's answers are questions with the classes no and yes (`terrine.aggregation.findings`), and the student's score s
of a finding says p = σ(s), the chance of a yes. Likelihoods add up over findings, and a question that was not answered
adds nothing:

- noisy counts (h₀, h₁), each with noise of variance σ², say of the share of yes c/T what (h₁ − h₀ + T)/2T says, which
  has variance σ²/2T²: minus the log-likelihood is (that − p)²·(T/σ)²;
- a released label is a yes with probability r = p·(1 − w) + (1 − p)·w, where w is how often noise turns the answer of
  agreeing teachers round (`terrine.students.correction`), or 0: minus the log-likelihood is that of a coin.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from terrine.aggregation.findings import ANSWERS
from terrine.aggregation.mechanism import Mechanism
from terrine.students.answers import ReleasedAnswers
from terrine.students.correction import transition_matrix
from terrine.students.student import Student

_LEAST = 1e-7


def share_loss(scores: Tensor, targets: Tensor, weight: float) -> Tensor:
    """Return Σ weight · (σ(score) − share)² over the answered findings of each image, [B]; targets [B, K, 2]."""
    shares, answered = targets.unbind(2)
    return ((torch.sigmoid(scores) - shares).square() * answered).sum(1) * weight


def coin_loss(scores: Tensor, targets: Tensor, wrong: float = 0.0, smoothing: float = 0.0) -> Tensor:
    """Return −log of the released labels' probability over the answered findings of each image, [B].

    wrong: how often a label is turned round. smoothing: share of each label that is spread evenly over no and yes.
    """
    labels, answered = targets.unbind(2)
    labels = labels * (1 - smoothing) + smoothing / 2
    yes = wrong + (1 - 2 * wrong) * torch.sigmoid(scores)
    yes = yes.clamp(_LEAST, 1 - _LEAST)
    return -((labels * yes.log() + (1 - labels) * (1 - yes).log()) * answered).sum(1)


def answers_of_findings(
    mechanism: Mechanism,
    settings: Student,
    known: np.ndarray,
    labels: np.ndarray,
    histograms: np.ndarray | None,
    teachers: int,
) -> ReleasedAnswers:
    """Return the answers about all images for `terrine.students.answers.released_answers`, whose arguments these are.

    known: bool [images, findings], which were answered. Targets are float32 [images, findings, 2]: the share of yes, or
    the label, and 1 where it was answered.
    """
    described = {"answers": "labels", "findings": mechanism.findings}
    if mechanism.reveals == "histogram" and histograms is not None:
        values = (histograms[:, 1] - histograms[:, 0] + teachers) / (2 * teachers)
        weight = (teachers / mechanism.deviation) ** 2
        fit = held_out = partial(share_loss, weight=weight)
        described |= {"answers": "histograms", "teachers": int(teachers), "sigma": float(mechanism.deviation)}
    else:
        wrong = 0.0
        if settings.forward_correction:
            wrong = float(transition_matrix(mechanism.deviation, teachers, len(ANSWERS))[0, 1])
        held_out, values = partial(coin_loss, wrong=wrong), labels
        fit = partial(held_out, smoothing=settings.label_smoothing)
        described |= {"label_smoothing": float(settings.label_smoothing), "wrong": wrong}
    values = np.where(known, np.asarray(values, dtype=np.float64).reshape(known.shape), 0.0)
    return ReleasedAnswers(np.stack([values, known], axis=2).astype(np.float32), fit, held_out, described)
