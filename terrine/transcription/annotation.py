"""Data-sensitive annotation: what teachers would change in the student's output, limited, summed up, and made noisy.

For every synthetic sample each client gives the gradient of its distillation loss with respect to the student's output
(`terrine.transcription.distillation`), kept on the top-k classes *of the student* and limited to norm β:

    normalise   β g / (‖g‖ + h), h = 1e-4     (Liu et al. 2026, eq. 3; appendix D, line 27)
    clip        g · min(1, β / ‖g‖)

The mean over m clients with Gaussian noise, g̃ = (Σ_j g_j + N(0, σ²β²)) / m, is what is released, and the annotation is
the student's output less a step along it: y = Φ_s − γ g̃ (eq. 3, line 15 of appendix D). Equation 3 sums over the batch
and indexes the sample by the same letter; it is read per sample, as appendix D is.

Formal guarantees, for every β, k, loss and student:
- exchanging one record exchanges what one client says about a sample, a vector of norm at most β for another one, so
  the sum of that sample moves by at most 2β: each annotated sample is `event`, μ = 2/σ, and β has no part in it;
- the mask is a function of the student's output alone, which is released. (The paper masks the gradient itself, which
  would be sound only with noise on the classes outside the mask as well.) Outside it the annotation is the student's;
- in finite precision: sums are whole steps of the lattice that the noise is drawn on (`ClippedSum`), whatever the
  order of the clients, and a client whose numbers are not finite says nothing.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import GaussianEvent
from terrine.privacy.clipped_sum import ClippedSum
from terrine.privacy.noise import NoiseSource
from terrine.transcription.distillation import Distillation, GradientOf, gradient

Limit = Literal["normalise", "clip"]
Sums = NDArray[np.float64] | NDArray[np.int64]
"""Without noise, what is said in units of β; with noise to come, whole steps of its lattice."""


@dataclass(frozen=True)
class DataAnnotation:
    """The settings of the mechanism, by the paper's symbols.

    beta: β, the largest norm of what a client says about a sample. sigma: σ, the noise's standard deviation in units of
    β; 0 is no noise and NOT PRIVATE. top_k: k, classes kept. step: γ. stability: h. balance: λ.
    """

    beta: float = 1e-3
    sigma: float = 100.0
    top_k: int = 3
    step: float = 0.1
    limit: Limit = "normalise"
    stability: float = 1e-4
    distillation: Distillation = "decoupled"
    balance: float = 8.0
    gradient_of: GradientOf = "probabilities"

    def __post_init__(self) -> None:
        for name in ("beta", "step", "stability", "balance"):
            value = getattr(self, name)
            if not (0 < value < math.inf):
                raise SettingError(f"annotation.{name} is {value!r}. It must be greater than 0.")
        if not 0 <= self.sigma < math.inf:
            raise SettingError(f"annotation.sigma is {self.sigma!r}. It must not be negative.")
        if self.top_k < 2:
            raise SettingError(f"annotation.top_k is {self.top_k}. Give 2 or more classes.")

    @property
    def event(self) -> GaussianEvent:
        """What one annotated sample costs. Raises SettingError where there is no noise."""
        if self.sigma == 0:
            raise SettingError("Annotation without noise guarantees nothing: it has no cost that could be charged.")
        return GaussianEvent(sensitivity=2.0, sigma=self.sigma)

    def mask(self, student: Tensor) -> Tensor:
        """Return the k classes that the student finds most probable, int64 [B, k], ascending.

        student: probabilities [B, classes]. Nothing of a teacher can enter: there is no argument for it.
        """
        _check_top_k(self.top_k, student.shape[-1])
        return student.topk(self.top_k, dim=-1).indices.sort(dim=-1).values

    def said(self, teacher: Tensor, student: Tensor) -> Tensor:
        """Return what every client says about every sample, in units of β: float64 [clients, B, k], rows of norm ≤ 1.

        teacher: the clients' probabilities [clients, B, classes]; student: [B, classes].
        """
        if teacher.dim() != 3 or teacher.shape[1:] != student.shape:
            raise InputError(
                f"Teachers' probabilities are [clients, samples, classes] and the student's [samples, classes], not "
                f"{list(teacher.shape)} and {list(student.shape)}."
            )
        chosen = self.mask(student).expand(len(teacher), -1, -1)
        found = gradient(teacher, student, self.distillation, self.balance, self.gradient_of).gather(-1, chosen)
        norms = found.norm(dim=-1, keepdim=True)
        if self.limit == "normalise":
            return found / (norms + self.stability)
        return found / self.beta * torch.clamp(self.beta / norms.clamp(min=torch.finfo(norms.dtype).tiny), max=1.0)

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
            total = self._mechanism.noised(total, noise)
        change = torch.from_numpy(total * (self.beta * self.step / clients)).to(student.device)
        chosen = self.mask(student)
        moved = student.double().scatter_add(-1, chosen, -change.to(torch.float64))
        return moved.float()

    def without_noise(self) -> "DataAnnotation":
        """Return the same annotation without noise, for ablations: NOT PRIVATE."""
        return replace(self, sigma=0.0)

    @property
    def _mechanism(self) -> ClippedSum:
        return ClippedSum(clip=1.0, noise_multiplier=self.sigma)


def _check_top_k(top_k: int, classes: int) -> None:
    if top_k > classes:
        raise SettingError(f"annotation.top_k is {top_k}, but there are {classes} classes. Give at most as many.")
