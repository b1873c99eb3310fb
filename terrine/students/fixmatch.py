"""FixMatch (Sohn et al. 2020): a confident answer to a weak view is the label of a strong view of the same image.

With q_b = p(y | α(u_b)) for weak views α and q̂_b = argmax q_b, over a batch of μB images without answers,

    ℓ_u = 1/(μB) Σ_b 1[max q_b ≥ τ] · H(q̂_b, p(y | A(u_b)))          (equation 4)

is added with weight λ to the loss of the answers, ℓ_s of equation 3, which here is any likelihood of
`terrine.students.answers`. Prom-PATE (Li et al. 2023) trains its student with this loss. Probabilities that model
shares of votes are less confident than those that model labels, so a τ that suits labels may exclude every image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from terrine.determinism.randomness import derive_seed
from terrine.settings import Field
from terrine.students.gradient import SemiSupervisedStudent

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from terrine.students.inputs import Inputs, View


class FixMatchStudent(SemiSupervisedStudent):
    """Learns from its own confident answers to weak views of unlabelled images (Sohn et al. 2020, section 2.2)."""

    views_wanted: ClassVar[tuple[View, ...]] = ("weak", "strong")

    kind: Literal["fixmatch"] = "fixmatch"
    threshold: float = Field(0.95, ge=0, le=1)
    """τ: minimum confidence of a pseudo-label."""

    def unlabelled_loss(self, inputs: Inputs, rows: np.ndarray, seed: int, state: dict[str, Tensor]) -> Tensor:
        import torch

        with torch.no_grad():
            weak = inputs.scores(inputs.view("weak", rows, derive_seed(seed, "weak")))
        strong = inputs.scores(inputs.view("strong", rows, derive_seed(seed, "strong")))
        return self.unlabelled_weight * fixmatch_loss(weak, strong, self.threshold)


def fixmatch_loss(weak_scores: Tensor, strong_scores: Tensor, threshold: float) -> Tensor:
    """Return ℓ_u, a scalar.

    weak_scores, strong_scores: [μB, classes] for the two views of the same images. Weak scores get no gradient.
    """
    import torch
    import torch.nn.functional as F

    confidence, label = torch.softmax(weak_scores.detach(), dim=1).max(dim=1)
    losses = F.cross_entropy(strong_scores, label, reduction="none")
    return (losses * (confidence >= threshold)).mean()
