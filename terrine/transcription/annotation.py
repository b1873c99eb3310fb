"""Annotations of synthetic samples: noisy distillation gradients, or classes by randomised response.

Distillation
------------
The decoupled loss (Liu et al. 2026, eq. 2) of a sample, with r the teacher's most probable class, is

    p_t,r log(p_t,r / p_s,r) + (1 − p_t,r) log((1 − p_t,r) / (1 − p_s,r))              target part
    + λ Σ_{j≠r} p_t,j / (1 − p_t,j) · log(p_t,j (1 − p_s,j) / (p_s,j (1 − p_t,j)))     non-target part

The classic loss is the cross-entropy −Σ_j p_t,j log p_s,j. Both gradients with respect to the student's output have a
closed form. As printed, the non-target part has no minimum at the teacher's probabilities (docs/dpsd.md).

All values are float64; probabilities are clamped to [`FLOOR`, 1 − `FLOOR`] because the logarithms have poles.

Data-sensitive annotation
-------------------------
Client j computes the gradient G_j [b, c] of a batch with respect to the student's output, keeps the k largest entries
(in magnitude) of each row, M_k, and limits the norm:

    normalise   β M_k(G) / (‖M_k(G)‖ + h), h = 1e-4      (eq. 3; appendix D, line 27)
    clip        M_k(G) · min(1, β / ‖M_k(G)‖)

The mean over m clients is released with Gaussian noise on all b·c coordinates, outside the mask operator as in eq. 3:
g̃ = (Σ_j ḡ_j + N(0, σ²β²)) / m (appendix D, line 15). The annotation is y = Φ_s − γ g̃ (eq. 3). The average over the
batch that eq. 3 also prints would be post-processing of g̃ and is not taken, as in appendix D.

The norm in eq. 3 has no sample index, while Theorem 1 is proved for one sample at a time. Both readings are
implemented:

`norm: batch`   ‖·‖ is the norm of the whole matrix, so ‖ḡ_j‖ ≤ β.
`norm: sample`  ‖·‖ is the norm of each row, so each of the b rows has norm at most β.

Guarantees, for every β, k, loss, mask and student:
- Replacing one record changes one client's ḡ_j arbitrarily. batch: the sum moves by at most 2β, so an iteration is
  μ-GDP with μ = 2/σ, and T adaptive iterations compose to μ² = 4T/σ². sample: each row moves by at most 2β, the matrix
  by at most 2β√b, so μ² = 4bT/σ². β cancels. Both bounds are attained by opposite gradients.
- With σ = 100, b = 256, T = 200 and δ = 1e-5 the exact ε is 1.06 (batch) or 28.84 (sample).
- The mask depends on private gradients, but is applied before the norm is limited, and noise covers all coordinates.
  The mask is therefore part of ḡ_j and not released. Noise on the k kept coordinates only would reveal the mask.
- Finite precision: sums are whole steps of the noise's lattice (`ClippedSum`), so the order of clients is irrelevant. A
  norm that is not finite makes its vector zero.

Label-sensitive annotation
--------------------------
The teacher's class by randomised response among the student's top-k classes:

    y = one-hot of R(r; k, ε) if the teacher's class r is among the student's k most probable classes,
        one-hot of one of these k, uniformly, otherwise                  (eq. 5; appendix D, line 33)

Equation 5 prints R over all c classes. An answer outside the top k would then prove that r is among them, and no ε
bounds that ratio. Appendix D answers among the top k, which is ε-differentially private and is implemented here.

Guarantee: one annotated sample is a `RandomisedResponseEvent` for the teacher's class. The teacher depends on all of a
client's records, so one record may change its class for every sample: n samples cost the composition of n events, not
one ε as in Theorem 2. Clients hold disjoint records, so their number does not matter.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from terrine.errors import InputError, SettingError
from terrine.privacy.noise import NoiseSource
from terrine.privacy.noised_sum import ClippedSum
from terrine.privacy.randomised_response import ResponseSource
from terrine.transcription.settings import Annotation, Distillation, GradientOf

FLOOR = 1e-6
"""Smallest probability in a loss; the largest is 1 − `FLOOR`."""


def gradient(
    teacher: Tensor, student: Tensor, distillation: Distillation, balance: float = 8.0, of: GradientOf = "probabilities"
) -> Tensor:
    """Compute the gradient of each sample's loss with respect to the student's output.

    Args:
        teacher: Class probabilities of any number of clients, [..., B, classes].
        student: Class probabilities, [B, classes].
        distillation: Decoupled or classic loss.
        balance: λ of the decoupled loss.
        of: Differentiate with respect to `probabilities`, as the paper writes, or to `scores`, their logits.

    Returns:
        float64 [..., B, classes].
    """
    p, s = (probabilities.double().clamp(FLOOR, 1 - FLOOR) for probabilities in (teacher, student))
    if distillation == "classic":
        return s - p if of == "scores" else -p / s
    own = -p / s + (1 - p) / (1 - s)
    others = -balance * p / (1 - p) / (s * (1 - s))
    # argmax takes the first of equal probabilities.
    target = torch.nn.functional.one_hot(teacher.argmax(-1), teacher.shape[-1]).bool()
    found = torch.where(target, own, others)
    return found if of == "probabilities" else s * (found - (s * found).sum(-1, keepdim=True))


Sums = NDArray[np.float64] | NDArray[np.int64]
"""Sums of contributions: in units of β if there is no noise, otherwise in whole steps of the noise's lattice."""


def top_classes(student: Tensor, top_k: int) -> Tensor:
    """Return the k classes that the student finds most probable, int64 [B, k], ascending."""
    _check_top_k(top_k, student.shape[-1])
    return student.topk(top_k, dim=-1).indices.sort(dim=-1).values


def _check_top_k(top_k: int, classes: int) -> None:
    if top_k > classes:
        raise SettingError(f"annotation.top_k is {top_k}, but there are {classes} classes. Lower it.")


@dataclass(frozen=True)
class DataAnnotation:
    """Noisy distillation gradients with the settings of a run; without σ there is no noise: NOT PRIVATE."""

    settings: Annotation

    @property
    def sigma(self) -> float:
        """σ: standard deviation of the noise in units of β; 0 without noise."""
        return self.settings.sigma or 0.0

    def contributions(self, teacher: Tensor, student: Tensor) -> Tensor:
        """Compute each client's masked and limited gradient in units of β, float64 [clients, B, classes].

        Args:
            teacher: The clients' probabilities, [clients, B, classes].
            student: The student's class probabilities, [B, classes].

        Returns:
            ḡ_j / β: the matrix of a client (`norm: batch`) or each of its rows (`norm: sample`) has norm at most 1.
        """
        if teacher.dim() != 3 or teacher.shape[1:] != student.shape:
            raise InputError(
                f"Teachers' probabilities are [clients, samples, classes] and the student's [samples, classes], not "
                f"{list(teacher.shape)} and {list(student.shape)}."
            )
        settings = self.settings
        _check_top_k(settings.top_k, student.shape[-1])
        found = gradient(teacher, student, settings.distillation, settings.balance, settings.gradient_of)
        kept = found.abs().topk(settings.top_k, dim=-1).indices
        found = torch.zeros_like(found).scatter(-1, kept, found.gather(-1, kept))
        norms = found.norm(dim=(-2, -1) if settings.norm == "batch" else -1, keepdim=True)
        if settings.limit == "normalise":
            return found / (norms + settings.stability)
        beta = settings.beta
        return found / beta * torch.clamp(beta / norms.clamp(min=torch.finfo(norms.dtype).tiny), max=1.0)

    def total(self, teacher: Tensor, student: Tensor) -> Sums:
        """Sum the contributions of a group of clients, [B, classes]. The result is private, because it has no noise.

        With noise these are whole numbers, so the sums of groups add up exactly and in any order.
        """
        values = self.contributions(teacher, student).detach().cpu().numpy()
        if self.sigma == 0:
            return np.asarray(values.sum(axis=0))
        clients, _, classes = values.shape
        self.check_clients(clients)
        vectors = values.reshape(clients, -1) if self.settings.norm == "batch" else values.reshape(-1, classes)
        return np.asarray(self._mechanism.steps(vectors).reshape(values.shape).sum(axis=0))

    def check_clients(self, clients: int) -> None:
        """Raise SettingError if the contributions of that many clients have no exact sum with noise."""
        if self.sigma > 0 and not self._mechanism.fits(clients):
            raise SettingError(
                f"{clients:,} clients do not fit an exact sum at annotation.sigma={self.sigma:g}. Take fewer clients."
            )

    def annotate(self, total: Sums, student: Tensor, clients: int, noise: NoiseSource | None) -> Tensor:
        """Draw the noise and return the annotation y, float32 [B, classes] on the student's device: a release.

        Args:
            total: Sum of `total` over all clients, [B, classes].
            student: The student's class probabilities, [B, classes].
            clients: Number of clients, m.
            noise: Noise source; None only with σ = 0.
        """
        if (noise is None) != (self.sigma == 0):
            raise SettingError("Annotation takes a source of noise exactly when sigma is above 0.")
        if noise is not None:
            total = self._mechanism.noised(cast(NDArray[np.int64], total), noise)
        change = torch.from_numpy(total * (self.settings.beta * self.settings.step / clients)).to(student.device)
        return (student.double() - change).float()

    @property
    def _mechanism(self) -> ClippedSum:
        return ClippedSum(clip=1.0, noise_multiplier=self.sigma)


def answers(teacher: Tensor, student: Tensor, settings: Annotation, source: ResponseSource) -> Tensor:
    """Draw every client's answers by randomised response, int64 [clients, B]: a release.

    Args:
        teacher: The clients' probabilities, [clients, B, classes].
        student: The student's class probabilities, [B, classes].
        settings: ε of one answer and k.
        source: Source of randomness.
    """
    assert settings.epsilon is not None
    chosen = top_classes(student, settings.top_k)
    among = teacher.argmax(-1)[..., None] == chosen
    place = torch.where(among.any(-1), among.int().argmax(-1), -1).cpu().numpy()
    responses = source.respond(place.reshape(-1).astype(np.int64), settings.epsilon, settings.top_k).reshape(
        place.shape
    )
    indices = torch.from_numpy(responses).to(chosen.device)
    return chosen.expand(len(teacher), -1, -1).gather(-1, indices[..., None])[..., 0]


def counts(answers: Tensor, classes: int) -> Tensor:
    """Count the clients' answers by class, int64 [B, classes]; their mean is the annotation."""
    return torch.nn.functional.one_hot(answers, classes).sum(0)
