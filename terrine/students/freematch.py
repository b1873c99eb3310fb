"""FreeMatch (Wang et al. 2023): FixMatch with adaptive thresholds and a term for class fairness.

After every batch of μB weak views with q_b = p(y | α(u_b)), with decay d and C classes, all three starting at 1/C:

    τ_t    = d τ_{t-1} + (1-d) 1/(μB) Σ_b max q_b             (equation 5, the global threshold)
    p̃_t    = d p̃_{t-1} + (1-d) 1/(μB) Σ_b q_b                 (equation 6)
    τ_t(c) = p̃_t(c) / max_c p̃_t(c) · τ_t                      (equation 7)
    h̃_t    = d h̃_{t-1} + (1-d) Hist(argmax q_b)               (equation 11)

    ℓ_u = 1/(μB) Σ_b 1[max q_b ≥ τ_t(argmax q_b)] · H(argmax q_b, Q_b)         (equation 8)
    ℓ_f = −H(SumNorm(p̃_t / h̃_t), SumNorm(p̄ / h̄))                              (equation 12)

where Q_b = p(y | A(u_b)) for strong views, p̄ is the mean of Q_b and h̄ the histogram of argmax Q_b over the images that
passed, and H the cross-entropy. The answers' loss + λ ℓ_u + λ_f ℓ_f is minimised. Classes not in h̄ are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from terrine.determinism.randomness import derive_seed
from terrine.settings import Field
from terrine.students.gradient import SemiSupervisedStudent

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from terrine.students.inputs import Inputs, View


class FreeMatchStudent(SemiSupervisedStudent):
    """FixMatch with thresholds that start at chance and follow the student (Wang et al. 2023, section 4)."""

    views_wanted: ClassVar[tuple[View, ...]] = ("weak", "strong")

    kind: Literal["freematch"] = "freematch"
    decay: float = Field(0.99, ge=0, lt=1)
    """Decay of the moving averages of the thresholds."""
    fairness: float = Field(0.01, ge=0)
    """λ_f: weight of the class fairness loss."""

    def initial_state(self, classes: int) -> dict[str, Tensor]:
        return vars(Thresholds.initial(classes)).copy()

    def unlabelled_loss(self, inputs: Inputs, rows: np.ndarray, seed: int, state: dict[str, Tensor]) -> Tensor:
        import torch

        with torch.no_grad():
            weak = torch.softmax(inputs.scores(inputs.view("weak", rows, derive_seed(seed, "weak"))), dim=1)
            before = Thresholds(**{name: value.to(weak) for name, value in state.items()})
            thresholds = before.after(weak, self.decay)
            state.update(vars(thresholds))
        strong = inputs.scores(inputs.view("strong", rows, derive_seed(seed, "strong")))
        consistency, fairness = freematch_loss(weak, strong, thresholds)
        return self.unlabelled_weight * consistency + self.fairness * fairness


@dataclass(frozen=True, eq=False)
class Thresholds:
    """The running quantities of FreeMatch: τ, a scalar; p̃ and h̃, [classes]."""

    level: Tensor
    probability: Tensor
    histogram: Tensor

    @classmethod
    def initial(cls, classes: int) -> Thresholds:
        """Return the state before the first batch."""
        import torch

        return cls(torch.tensor(1 / classes), torch.full((classes,), 1 / classes), torch.full((classes,), 1 / classes))

    def after(self, probabilities: Tensor, decay: float) -> Thresholds:
        """Return the state after a batch of weak views' probabilities [μB, classes]: equations 5, 6 and 11."""
        import torch.nn.functional as F

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
    """Return ℓ_u and ℓ_f, scalars.

    probabilities: [μB, classes] of the weak views, without gradients; strong_scores: [μB, classes] of the strong ones;
    thresholds: the state after this batch. ℓ_f is zero if no image passes.
    """
    import torch
    import torch.nn.functional as F

    confidence, label = probabilities.detach().max(dim=1)
    passed = confidence >= thresholds.per_class()[label]
    losses = F.cross_entropy(strong_scores, label, reduction="none")
    consistency = (losses * passed).mean()
    if not bool(passed.any()):
        return consistency, torch.zeros_like(consistency)

    def reciprocal(values: Tensor) -> Tensor:
        return torch.where(values > 0, 1 / values.clamp(min=torch.finfo(values.dtype).tiny), 0.0)

    strong = torch.softmax(strong_scores[passed], dim=1)
    own = F.one_hot(strong.argmax(1), strong.shape[1]).to(strong.dtype).mean(0)
    target = thresholds.probability * reciprocal(thresholds.histogram)
    target = target / target.sum()
    actual = strong.mean(0) * reciprocal(own)
    actual = actual / actual.sum()
    return consistency, (target * torch.log(actual + 1e-12)).sum()
