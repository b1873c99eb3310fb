"""Annotations of synthetic samples: distillation gradients with noise, or classes by randomised response.

Distillation
------------
The decoupled loss (Liu et al. 2026, eq. 2) of a sample whose target class r is the teacher's most probable one is

    p_t,r log(p_t,r / p_s,r) + (1 − p_t,r) log((1 − p_t,r) / (1 − p_s,r))              the target part
    + λ Σ_{j≠r} p_t,j / (1 − p_t,j) · log(p_t,j (1 − p_s,j) / (p_s,j (1 − p_t,j)))     the others' part

The classic one is the cross-entropy −Σ_j p_t,j log p_s,j. What is annotated is the gradient with respect to the
student's output, and both have one in closed form, so that any number of clients is a few array operations.

As printed, the others' part has no minimum at the teacher's probabilities: its gradient is negative for every other
class. A student that follows it comes to rest at a softened copy of a confident teacher, and of a teacher that is not
confident it can turn the classes around (docs/dpsd.md).

Everything is float64; probabilities are kept `FLOOR` away from 0 and 1, where the logarithms have poles.

Data-sensitive annotation
-------------------------
For every synthetic sample each client gives the gradient of its distillation loss with respect to the student's output
(`gradient`), kept on the top-k classes *of the student* and limited to norm β:

    normalise   β g / (‖g‖ + h), h = 1e-4     (Liu et al. 2026, eq. 3; appendix D, line 27)
    clip        g · min(1, β / ‖g‖)

The mean over m clients with Gaussian noise, g̃ = (Σ_j g_j + N(0, σ²β²)) / m, is what is released, and the annotation is
the student's output less a step along it: y = Φ_s − γ g̃ (eq. 3, line 15 of appendix D). Equation 3 sums over the batch
and indexes the sample by the same letter; it is read per sample, as appendix D is.

Formal guarantees, for every β, k, loss and student:
- exchanging one record exchanges what one client says about a sample, a vector of norm at most β for another one, so
  the sum of that sample moves by at most 2β: each annotated sample costs μ = 2/σ (`event_of`), and β has no part in it;
- the mask is a function of the student's output alone, which is released. (The paper masks the gradient itself, which
  would be sound only with noise on the classes outside the mask as well.) Outside it the annotation is the student's;
- in finite precision: sums are whole steps of the lattice that the noise is drawn on (`ClippedSum`), whatever the
  order of the clients, and a client whose numbers are not finite says nothing.

Label-sensitive annotation
--------------------------
The teacher's class, by randomised response among the student's top-k classes:

    y = one-hot of R(r; k, ε) if the teacher's class r is among the student's k most probable classes,
        one-hot of one of these k, uniformly, otherwise                  (Liu et al. 2026, eq. 5; appendix D)

Equation 5 prints R over all c classes. Then an answer outside the top-k would prove that r is inside it, and no ε would
bound the ratio; appendix D (line 33) answers among the top-k, which is ε-differentially private, and is what is done.

Formal guarantee: one annotated sample is a `RandomisedResponseEvent` towards the teacher's class. The teacher is a
function of all of a client's records, so one record may change its class for every sample: n samples cost the
composition of n events (docs/dpsd.md), not one ε as the paper's Theorem 2 is read. Clients hold disjoint records, so
more of them cost nothing.
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
"""Probabilities are used as if they were at least this, and at most one less this."""


def gradient(
    teacher: Tensor, student: Tensor, distillation: Distillation, balance: float = 8.0, of: GradientOf = "probabilities"
) -> Tensor:
    """Return the gradient of each sample's loss with respect to the student's output, float64 [..., B, classes].

    teacher: class probabilities [..., B, classes], of any number of clients; student: [B, classes]. balance: λ. of: the
    output that is meant: `probabilities`, as the paper writes, or the `scores` whose softmax they are.
    """
    p, s = (probabilities.double().clamp(FLOOR, 1 - FLOOR) for probabilities in (teacher, student))
    if distillation == "classic":
        # Of the scores in its own form: p_s − p_t has no pole.
        if of == "scores":
            return s - p
        return -p / s
    own = -p / s + (1 - p) / (1 - s)
    others = -balance * p / (1 - p) / (s * (1 - s))
    # The teacher's most probable class; of equals the first.
    target = torch.nn.functional.one_hot(teacher.argmax(-1), teacher.shape[-1]).bool()
    found = torch.where(target, own, others)
    return found if of == "probabilities" else s * (found - (s * found).sum(-1, keepdim=True))


Sums = NDArray[np.float64] | NDArray[np.int64]
"""Without noise, what is said in units of β; with noise to come, whole steps of its lattice."""


def mask(student: Tensor, top_k: int) -> Tensor:
    """Return the k classes that the student finds most probable, int64 [B, k], ascending.

    student: probabilities [B, classes]. Nothing of a teacher can enter: there is no argument for it.
    """
    if top_k > student.shape[-1]:
        raise SettingError(
            f"annotation.top_k is {top_k}, but there are {student.shape[-1]} classes. Give at most as many."
        )
    return student.topk(top_k, dim=-1).indices.sort(dim=-1).values


@dataclass(frozen=True)
class DataAnnotation:
    """The mechanism with the settings of a run. Where these have no σ, there is no noise: NOT PRIVATE."""

    settings: Annotation

    @property
    def sigma(self) -> float:
        """σ: the noise's standard deviation in units of β; 0 is no noise."""
        return self.settings.sigma or 0.0

    def said(self, teacher: Tensor, student: Tensor) -> Tensor:
        """Return what every client says about every sample, in units of β: float64 [clients, B, k], rows of norm ≤ 1.

        teacher: the clients' probabilities [clients, B, classes]; student: [B, classes].
        """
        if teacher.dim() != 3 or teacher.shape[1:] != student.shape:
            raise InputError(
                f"Teachers' probabilities are [clients, samples, classes] and the student's [samples, classes], not "
                f"{list(teacher.shape)} and {list(student.shape)}."
            )
        settings = self.settings
        found = gradient(teacher, student, settings.distillation, settings.balance, settings.gradient_of)
        found = found.gather(-1, mask(student, settings.top_k).expand(len(teacher), -1, -1))
        norms = found.norm(dim=-1, keepdim=True)
        if settings.limit == "normalise":
            return found / (norms + settings.stability)
        beta = settings.beta
        return found / beta * torch.clamp(beta / norms.clamp(min=torch.finfo(norms.dtype).tiny), max=1.0)

    def total(self, teacher: Tensor, student: Tensor) -> Sums:
        """Return the sum over the clients at hand of what they say, [B, k]; see `Sums`.

        With noise to come these are whole numbers, so sums of groups of clients add up exactly and in any order.
        Private: there is no noise yet.
        """
        said = self.said(teacher, student).detach().cpu().numpy()
        if self.sigma == 0:
            return np.asarray(said.sum(axis=0))
        clients, samples, kept = said.shape
        self.check_clients(clients)
        steps = self._mechanism.steps(said.reshape(-1, kept)).reshape(clients, samples, kept)
        return np.asarray(steps.sum(axis=0))

    def check_clients(self, clients: int) -> None:
        """Raise SettingError where what so many clients say, in groups or together, has no exact sum with noise."""
        if self.sigma > 0 and not self._mechanism.fits(clients):
            raise SettingError(
                f"{clients:,} clients do not fit an exact sum at annotation.sigma={self.sigma:g}. Take fewer clients."
            )

    def annotate(self, total: Sums, student: Tensor, clients: int, noise: NoiseSource | None) -> Tensor:
        """Return the annotation y, float32 [B, classes] on the student's device.

        total: the sum of all clients' `total`, [B, k]. clients: m. noise: its source; None only with σ = 0. Drawn
        here, once: the result is a release.
        """
        if (noise is None) != (self.sigma == 0):
            raise SettingError("Annotation takes a source of noise exactly when sigma is above 0.")
        if noise is not None:
            total = self._mechanism.noised(cast(NDArray[np.int64], total), noise)
        settings = self.settings
        change = torch.from_numpy(total * (settings.beta * settings.step / clients)).to(student.device)
        moved = student.double().scatter_add(-1, mask(student, settings.top_k), -change.to(torch.float64))
        return moved.float()

    @property
    def _mechanism(self) -> ClippedSum:
        return ClippedSum(clip=1.0, noise_multiplier=self.sigma)


def answers(teacher: Tensor, student: Tensor, settings: Annotation, source: ResponseSource) -> Tensor:
    """Return every client's answers, int64 [clients, B]: a release.

    teacher: the clients' probabilities [clients, B, classes]; student: [B, classes].
    """
    assert settings.epsilon is not None
    chosen = mask(student, settings.top_k)
    among = teacher.argmax(-1)[..., None] == chosen
    place = torch.where(among.any(-1), among.int().argmax(-1), -1).cpu().numpy()
    told = source.respond(place.reshape(-1).astype(np.int64), settings.epsilon, settings.top_k).reshape(place.shape)
    indices = torch.from_numpy(told).to(chosen.device)
    return chosen.expand(len(teacher), -1, -1).gather(-1, indices[..., None])[..., 0]


def counts(answers: Tensor, classes: int) -> Tensor:
    """Return how many clients answered each class, int64 [B, classes]: their mean is the annotation."""
    return torch.nn.functional.one_hot(answers, classes).sum(0)
