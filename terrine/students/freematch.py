"""FreeMatch (Wang et al. 2023): FixMatch whose threshold follows the student's own confidence, and fair to classes.

After every batch of μB weak views with q_b = p(y | α(u_b)), with decay d and C classes, all three from 1/C on:

    τ_t    = d τ_{t-1} + (1-d) 1/(μB) Σ_b max q_b             (equation 5, the global threshold)
    p̃_t    = d p̃_{t-1} + (1-d) 1/(μB) Σ_b q_b                 (equation 6)
    τ_t(c) = p̃_t(c) / max_c p̃_t(c) · τ_t                      (equation 7)
    h̃_t    = d h̃_{t-1} + (1-d) Hist(argmax q_b)               (equation 11)

    ℓ_u = 1/(μB) Σ_b 1[max q_b ≥ τ_t(argmax q_b)] · H(argmax q_b, Q_b)         (equation 8)
    ℓ_f = −H(SumNorm(p̃_t / h̃_t), SumNorm(p̄ / h̄))                              (equation 12)

where Q_b = p(y | A(u_b)) for strong views, p̄ is the mean of Q_b and h̄ the histogram of argmax Q_b over the images that
passed, and H the cross-entropy. The answer's loss + λ ℓ_u + λ_f ℓ_f is minimised. Classes that h̄ lacks take no part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.determinism.randomness import derive_seed
from terrine.students.inputs import Inputs
from terrine.students.kinds.freematch import FreeMatchStudent
from terrine.students.term import UnlabelledTerm


@dataclass(frozen=True, eq=False)
class Thresholds:
    """The running quantities of FreeMatch: τ, a scalar; p̃ and h̃, [classes]."""

    level: Tensor
    probability: Tensor
    histogram: Tensor

    @classmethod
    def initial(cls, classes: int) -> Thresholds:
        """Return the state before the first batch."""
        return cls(torch.tensor(1 / classes), torch.full((classes,), 1 / classes), torch.full((classes,), 1 / classes))

    def after(self, probabilities: Tensor, decay: float) -> Thresholds:
        """Return the state after a batch of weak views' probabilities [μB, classes]: equations 5, 6 and 11."""
        confidence, label = probabilities.max(dim=1)
        histogram = F.one_hot(label, probabilities.shape[1]).to(probabilities.dtype).mean(0)
        return Thresholds(
            decay * self.level + (1 - decay) * confidence.mean(),
            decay * self.probability + (1 - decay) * probabilities.mean(0),
            decay * self.histogram + (1 - decay) * histogram,
        )

    def per_class(self) -> Tensor:
        """Return τ_t(c), [classes]: equation 7."""
        return self.probability / self.probability.max() * self.level


def freematch_loss(probabilities: Tensor, strong_scores: Tensor, thresholds: Thresholds) -> tuple[Tensor, Tensor]:
    """Return ℓ_u and ℓ_f, scalars: see the module's head.

    probabilities: [μB, classes] of the weak views, without gradients; strong_scores: [μB, classes] of the strong ones;
    thresholds: the state after this batch. ℓ_f is zero where no image passes.
    """
    confidence, label = probabilities.detach().max(dim=1)
    passed = confidence >= thresholds.per_class()[label]
    losses = F.cross_entropy(strong_scores, label, reduction="none")
    consistency = (losses * passed).mean()
    if not bool(passed.any()):
        return consistency, torch.zeros_like(consistency)
    strong = torch.softmax(strong_scores[passed], dim=1)
    own = F.one_hot(strong.argmax(1), strong.shape[1]).to(strong.dtype).mean(0)
    target = thresholds.probability * _reciprocal(thresholds.histogram)
    target = target / target.sum()
    actual = strong.mean(0) * _reciprocal(own)
    actual = actual / actual.sum()
    return consistency, (target * torch.log(actual + 1e-12)).sum()


def _reciprocal(values: Tensor) -> Tensor:
    """Return 1 / values, and 0 where that is infinite."""
    return torch.where(values > 0, 1 / values.clamp(min=torch.finfo(values.dtype).tiny), 0.0)


class FreeMatchTerm(UnlabelledTerm):
    """The term of `FreeMatchStudent`: see the module's head."""

    settings: FreeMatchStudent
    strengths = ("weak", "strong")

    def __init__(self, settings: FreeMatchStudent, classes: int) -> None:
        super().__init__(settings)
        self.thresholds = Thresholds.initial(classes)

    def loss(self, inputs: Inputs, rows: np.ndarray, seed: int) -> Tensor:
        with torch.no_grad():
            weak = torch.softmax(inputs.scores(inputs.weak(rows, derive_seed(seed, "weak"))), dim=1)
            now = self.thresholds
            moved = Thresholds(*(part.to(weak) for part in (now.level, now.probability, now.histogram)))
            self.thresholds = moved.after(weak, self.settings.decay)
        strong = inputs.scores(inputs.strong(rows, derive_seed(seed, "strong")))
        consistency, fairness = freematch_loss(weak, strong, self.thresholds)
        return self.settings.unlabelled_weight * consistency + self.settings.fairness * fairness

    def state(self) -> dict[str, Tensor]:
        now = self.thresholds
        return {"level": now.level, "probability": now.probability, "histogram": now.histogram}

    def load(self, state: dict[str, Tensor]) -> None:
        self.thresholds = Thresholds(state["level"], state["probability"], state["histogram"])
