"""Virtual adversarial training (Miyato et al. 2018): predictions must not change under small perturbations.

    r_adv = argmax over ‖r‖ ≤ ε of KL(p(y | x) ‖ p(y | x + r))         (equations 5 and 8)
    term  = λ · mean over images of KL(p(y | x) ‖ p(y | x + r_adv))

r_adv is found by power iteration on the Hessian of that divergence: d, a random unit vector, is replaced by the
normalised gradient at ξ d with respect to d, `power_iterations` times (algorithm 1). The loss needs no answers, so all
images take part. If the backbone is trained, x is an image; otherwise x is a feature vector. ε and ξ are multiples of
the root mean square distance of the batch's inputs from their mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from terrine.determinism.randomness import derive_seed, torch_generator
from terrine.settings import Field
from terrine.students.gradient import SemiSupervisedStudent

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from terrine.students.inputs import Inputs

_PROBE = 0.01
"""ξ, in units of the inputs' distance from their mean."""

Scores = Callable[["Tensor"], "Tensor"]


class VATStudent(SemiSupervisedStudent):
    """Keeps its answers unchanged in the direction in which they would change most (Miyato et al. 2018, section 3)."""

    kind: Literal["vat"] = "vat"
    perturbation: float = Field(0.3, gt=0)
    """ε: norm of the perturbation, in units of the inputs' distance from their mean."""
    power_iterations: int = Field(1, ge=1)
    """Power iterations in the search for the worst perturbation."""

    def unlabelled_loss(self, inputs: Inputs, rows: np.ndarray, seed: int, state: dict[str, Tensor]) -> Tensor:
        import torch

        images = inputs.plain(rows)
        start = torch.randn(images.shape, generator=torch_generator(derive_seed(seed, "direction"), "vat"))
        size = spread(images)
        loss = vat_loss(
            inputs.scores,
            images,
            start.to(images),
            epsilon=self.perturbation * size,
            probe=_PROBE * size,
            iterations=self.power_iterations,
        )
        return self.unlabelled_weight * loss


def divergence(scores: Tensor, other: Tensor) -> Tensor:
    """Return KL(softmax(scores) ‖ softmax(other)) per image [B]."""
    import torch

    log_p, log_q = torch.log_softmax(scores, dim=1), torch.log_softmax(other, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def adversarial_direction(
    scores: Scores, inputs: Tensor, start: Tensor, *, probe: float, iterations: int, clean: Tensor
) -> Tensor:
    """Return unit vectors d [B, ...] along which `clean`, the scores of `inputs` [B, ...], change most.

    start: random directions, like `inputs`. probe: ξ, a length. No weight gets a gradient.
    """
    import torch

    def unit(vectors: Tensor) -> Tensor:
        norms = vectors.flatten(1).norm(dim=1).clamp(min=torch.finfo(vectors.dtype).tiny)
        return vectors / norms.view(-1, *[1] * (vectors.dim() - 1))

    direction = unit(start)
    for _ in range(iterations):
        direction = direction.detach().requires_grad_()
        changed = divergence(clean, scores(inputs + probe * direction)).sum()
        (gradient,) = torch.autograd.grad(changed, direction)
        direction = unit(gradient)
    return direction.detach()


def vat_loss(scores: Scores, inputs: Tensor, start: Tensor, *, epsilon: float, probe: float, iterations: int) -> Tensor:
    """Return the mean of KL(p(y | x) ‖ p(y | x + r_adv)), a scalar.

    epsilon, probe: lengths, in the inputs' units. p(y | x) is a constant: no gradient flows into it.
    """
    import torch

    with torch.no_grad():
        clean = scores(inputs)
    direction = adversarial_direction(scores, inputs, start, probe=probe, iterations=iterations, clean=clean)
    return divergence(clean, scores(inputs + epsilon * direction)).mean()


def spread(inputs: Tensor) -> float:
    """Return the root mean square distance of a batch's inputs from their mean."""
    return float((inputs - inputs.mean(0)).flatten(1).square().sum(1).mean().sqrt())
