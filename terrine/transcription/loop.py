"""The training loop of transcription: generate images, have them annotated, and train student and generator.

    loop = Loop(student, generator, settings, seed=0, device="cpu")
    while loop.iteration < settings.iterations:
        posed = loop.pose()                       # images and the student's probabilities
        loop.learn(annotate(posed))               # the only information about teachers
    loop.finish()

Source: Liu et al. 2026, algorithm 1. Student and generator are functions of public seeds and of the annotations, so the
guarantee of the annotations covers both by post-processing. A `discriminator` other than the student (the paper's
DPSD-T) is an exception: the generator then uses that model without noise, and through its images so does the student.

One forward pass of generator and student serves the annotation and both training steps, so the generator's step uses
the student before its update. Additional steps are possible at no cost in privacy: of the student on batches annotated
earlier, and of the generator against the student.

The student is a backbone with a linear head, normalised by batch statistics. If the backbone has no weights
(scattering), only the head is trained, and features of stored batches are computed once.

All randomness derives from (seed, iteration), so a restored loop continues bit for bit (on a CPU).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine.determinism.randomness import numpy_generator
from terrine.errors import ArtefactError, SettingError
from terrine.heads import initial_head
from terrine.models.backbone import Backbone, as_float
from terrine.models.statistics import batch_statistics
from terrine.pretraining.checkpoint import optimizer_tensors, part, restore_optimizer
from terrine.transcription.generator import Generator, generator_loss, random_vectors
from terrine.transcription.settings import FitLoss, Transcription


class TranscribedStudent(nn.Module):
    """Images [B, C, H, W], float in [0, 1] or uint8, to (features [B, width], scores [B, classes]); B ≥ 2.

    The head starts from public random weights of `seed`. The backbone is trained in place.
    """

    def __init__(self, backbone: Backbone, classes: int, seed: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = initial_head(backbone.feature_dim, classes, seed).module()

    @property
    def frozen(self) -> bool:
        """True if the backbone has no weights to train."""
        return not any(parameter.requires_grad for parameter in self.backbone.parameters())

    def weights(self) -> list[nn.Parameter]:
        """Return the trained weights in a fixed order."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def features(self, images: Tensor) -> Tensor:
        """Compute features [B, width] with the statistics of this batch and with gradients."""
        with batch_statistics(self.backbone, "current"):
            return self.backbone.network(as_float(images)).float()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(images)
        return features, self.head(features)


def fit_loss(scores: Tensor, annotation: Tensor, loss: FitLoss) -> Tensor:
    """Compute L_s, the mean over the batch.

    `cross_entropy`: −Σ_j y_j log softmax(scores)_j (Liu et al. 2026, eq. 7). The loss has no lower bound if an
    annotation is negative: use it for single steps only. `squared`: ‖softmax(scores) − y‖² / 2, the likelihood of an
    annotation with Gaussian noise.
    """
    if loss == "cross_entropy":
        return -(annotation * F.log_softmax(scores, dim=1)).sum(1).mean()
    return (scores.softmax(1) - annotation).square().sum(1).mean() / 2


@torch.no_grad()
def probabilities(scores: Tensor) -> Tensor:
    """Compute Φ_s, the student's probabilities, float32 [B, classes], without gradients."""
    return scores.detach().softmax(1)


Discriminator = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Images with gradients to (features, scores)."""


@dataclass(frozen=True)
class Posed:
    """A batch for the teachers: images uint8 [b, C, H, W], and the student's probabilities, float32 [b, classes]."""

    iteration: int
    images: Tensor
    probabilities: Tensor


@dataclass
class _Remembered:
    """An annotated batch: its images (or their features, if the backbone is frozen) and annotation."""

    inputs: Tensor
    annotation: Tensor


@dataclass
class _Open:
    """The autograd graph of a posed batch, which both training steps use."""

    posed: Posed
    vectors: Tensor
    generated: Tensor
    features: Tensor
    scores: Tensor


class Loop:
    """The state of a transcription; `iteration` counts the annotations used.

    A `discriminator` replaces the student in the generator's loss: NOT PRIVATE.
    """

    def __init__(
        self,
        student: TranscribedStudent,
        generator: Generator,
        settings: Transcription,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        discriminator: Discriminator | None = None,
    ) -> None:
        self.settings, self.seed, self.device = settings, seed, torch.device(device)
        self.student, self.generator = student.to(self.device), generator.to(self.device)
        self.discriminator = discriminator
        self.iteration = 0
        trained = settings.generator.inputs == "trained"
        vectors = random_vectors(settings.batch, generator.latent, seed).to(self.device)
        self.vectors = nn.Parameter(vectors, requires_grad=trained)
        optimiser = {"adam": torch.optim.AdamW, "sgd": torch.optim.SGD}[settings.student.optimiser]
        self.student_optimiser: torch.optim.Optimizer = optimiser(
            self.student.weights(), lr=settings.student.learning_rate, weight_decay=settings.student.decay
        )
        self._generator_weights = [*self.generator.parameters(), *([self.vectors] if trained else [])]
        self.generator_optimiser = torch.optim.Adam(self._generator_weights, lr=settings.generator.learning_rate)
        self._memory: list[_Remembered] = []
        self._open: _Open | None = None

    def pose(self) -> Posed:
        """Generate the batch of this iteration, the same one until `learn` is called."""
        if self._open is None:
            vectors = self._inputs(self.iteration, 0)
            generated = self.generator(vectors)
            images = (generated.detach() * 255).round().to(torch.uint8)
            # Teachers annotate the stored 8-bit images; the gradient ignores the rounding (straight-through).
            rounded = generated + (images.to(generated.dtype) / 255 - generated).detach()
            features, scores = self.student(rounded)
            posed = Posed(self.iteration, images, probabilities(scores))
            self._open = _Open(posed, vectors, rounded, features, scores)
        return self._open.posed

    def learn(self, annotation: Tensor) -> dict[str, float]:
        """Train student and generator with the annotation [b, classes], and return their losses."""
        self.pose()
        pending = self._open
        assert pending is not None
        annotation = annotation.to(self.device)
        if annotation.shape != pending.scores.shape:
            raise SettingError(
                f"The annotation has shape {list(annotation.shape)}, expected {list(pending.scores.shape)}."
            )
        settings = self.settings
        follow = fit_loss(pending.scores, annotation, settings.student.loss)
        own = self.student.weights()
        gradients = torch.autograd.grad(follow, own, retain_graph=settings.generator.steps > 0)
        losses = {"student": float(follow.detach())}
        if settings.generator.steps:
            losses["generator"] = self._generator_step(pending.generated, (pending.features, pending.scores), follow)
        _step(self.student_optimiser, own, gradients)
        self._remember(pending, annotation)
        self._open = None
        for step in range(1, settings.generator.steps):
            self._generator_step(self.generator(self._inputs(self.iteration, step)))
        for step in range(1, settings.student.steps):
            self._again(self.iteration, step)
        self.iteration += 1
        return losses

    def finish(self) -> None:
        """Take the student's final steps on stored batches, with a learning rate that falls linearly to 0."""
        for step in range(self.settings.student.final_steps):
            for group in self.student_optimiser.param_groups:
                group["lr"] = self.settings.student.learning_rate * (1 - step / self.settings.student.final_steps)
            self._again(self.settings.iterations, step)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state between two iterations by name, for `restore`."""
        values = {f"student.{name}": value for name, value in self.student.state_dict().items()}
        values |= {f"generator.{name}": value for name, value in self.generator.state_dict().items()}
        values["vectors"] = self.vectors.data
        for name, optimiser in (("student", self.student_optimiser), ("generator", self.generator_optimiser)):
            values |= {f"optimiser.{name}.{key}": value for key, value in optimizer_tensors(optimiser).items()}
        for number, item in enumerate(self._memory):
            values[f"memory.{number}.inputs"], values[f"memory.{number}.annotation"] = item.inputs, item.annotation
        return values

    def restore(self, tensors: dict[str, Tensor], iteration: int) -> None:
        """Restore the state after `iteration` annotations. Raises ArtefactError for the state of another loop."""
        try:
            self.student.load_state_dict(part(tensors, "student."))
            self.generator.load_state_dict(part(tensors, "generator."))
            self.vectors.data.copy_(tensors["vectors"])
            for key, optimiser in (("student", self.student_optimiser), ("generator", self.generator_optimiser)):
                restore_optimizer(optimiser, part(tensors, f"optimiser.{key}."))
            memory = part(tensors, "memory.")
            self._memory = [
                _Remembered(*(memory[f"{number}.{name}"].to(self.device) for name in ("inputs", "annotation")))
                for number in range(len(memory) // 2)
            ]
        except (KeyError, RuntimeError, ValueError) as error:
            raise ArtefactError(f"The checkpoint belongs to another transcription ({error}). Delete it.") from error
        self.iteration, self._open = iteration, None

    def _inputs(self, iteration: int, step: int) -> Tensor:
        if self.settings.generator.inputs == "trained":
            return self.vectors
        drawn = random_vectors(self.settings.batch, self.generator.latent, self.seed, iteration, step)
        return drawn.to(self.device)

    def _generator_step(
        self, generated: Tensor, seen: tuple[Tensor, Tensor] | None = None, follow: Tensor | float = 0.0
    ) -> float:
        """Update generator and latent vectors by L_s + L_g, given the student's outputs if it has `seen` the images."""
        features, scores = self.discriminator(generated) if self.discriminator else seen or self.student(generated)
        loss = generator_loss(scores, features, self.settings.generator)
        own = self._generator_weights
        _step(self.generator_optimiser, own, torch.autograd.grad(follow + loss, own))
        return float(loss.detach())

    def _again(self, iteration: int, step: int) -> None:
        """Take a training step of the student on a stored batch."""
        chosen = int(numpy_generator(self.seed, "annotated before", iteration, step).integers(len(self._memory)))
        item = self._memory[chosen]
        scores = self.student.head(item.inputs) if self.student.frozen else self.student(item.inputs)[1]
        own = self.student.weights()
        loss = fit_loss(scores, item.annotation, self.settings.student.loss)
        _step(self.student_optimiser, own, torch.autograd.grad(loss, own))

    def _remember(self, pending: _Open, annotation: Tensor) -> None:
        if self.settings.student.steps == 1 and not self.settings.student.final_steps:
            return
        inputs = pending.features.detach() if self.student.frozen else pending.posed.images
        self._memory = [*self._memory, _Remembered(inputs, annotation)][-self.settings.student.memory :]


def _step(optimiser: torch.optim.Optimizer, weights: list[nn.Parameter], gradients: Any) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
