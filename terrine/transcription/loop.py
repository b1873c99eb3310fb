"""The three players' loop: the generator poses images, somebody annotates them, student and generator learn.

    loop = Transcription(student, generator, settings, seed=0, device="cpu")
    while loop.iteration < settings.iterations:
        posed = loop.pose()                       # images, and what the student says about them
        loop.learn(annotate(posed))               # the annotation is all that is ever heard of a teacher
    loop.finish()

(Liu et al. 2026, algorithm 1.) The loop knows no teacher: student and generator are functions of public seeds and of
the annotations, so whatever these guarantee holds for both. The one exception is a `discriminator` other than the
student (the paper's DPSD-T): then the generator has seen that model itself, and through its images so has the student.

One forward pass of generator and student serves the annotation, the student's step and the generator's. What the paper
leaves to one step per iteration may be more, at no cost in privacy: steps of the student on images annotated before,
batch by batch as they were, and of the generator against the student.

Everything random derives from (seed, iteration), so a checkpoint needs no generator's state, and a loop that is
restored goes on with the bits of one that was not interrupted (on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from terrine.determinism.randomness import numpy_generator
from terrine.errors import ArtefactError, SettingError
from terrine.pretraining.checkpoint import optimizer_tensors, restore_optimizer
from terrine.transcription.generator import Generator, random_vectors
from terrine.transcription.objectives import GeneratorObjective
from terrine.transcription.student import FitLoss, StudentNetwork, fit_loss, probabilities

Discriminator = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Images with gradients to (features, scores)."""


@dataclass(frozen=True)
class LoopSettings:
    """How student and generator learn.

    iterations, batch: T and b. student_rate, generator_rate: γ_s and γ_g. optimiser: of the student; the generator has
    Adam. student_loss: see `fit_loss`. student_steps: steps of the student per iteration, the first on the batch at
    hand, the others on earlier ones. final_steps: steps after the last annotation. generator_steps: likewise of the
    generator, the others without L_s. decay: weight decay of the student. inputs: `trained`: one batch of vectors,
    trained with the generator; `fresh`: new ones in every iteration. memory: images of how many iterations are kept.
    """

    iterations: int = 200
    batch: int = 256
    student_rate: float = 0.1
    student_loss: FitLoss = "cross_entropy"
    student_steps: int = 1
    final_steps: int = 0
    decay: float = 0.0
    optimiser: Literal["adam", "sgd"] = "adam"
    generator_rate: float = 0.01
    generator_steps: int = 1
    inputs: Literal["trained", "fresh"] = "trained"
    objective: GeneratorObjective = field(default_factory=GeneratorObjective)
    memory: int = 1000

    def __post_init__(self) -> None:
        for name, least in (
            ("iterations", 1),
            ("batch", 2),
            ("student_steps", 1),
            ("final_steps", 0),
            ("generator_steps", 0),
            ("memory", 1),
        ):
            if getattr(self, name) < least:
                raise SettingError(f"{name} is {getattr(self, name)}. It must be at least {least}.")
        if not (self.student_rate > 0 and self.generator_rate > 0 and self.decay >= 0):
            raise SettingError(
                f"student_rate {self.student_rate} and generator_rate {self.generator_rate} must be above 0, decay "
                f"{self.decay} not below."
            )


@dataclass(frozen=True)
class Posed:
    """A question to the teachers. images: uint8 [b, C, H, W]; probabilities: the student's, float32 [b, classes]."""

    iteration: int
    images: Tensor
    probabilities: Tensor


@dataclass
class _Remembered:
    """A batch that was annotated: its images (or their features, where these do not change) and annotation."""

    inputs: Tensor
    annotation: Tensor


@dataclass
class _Open:
    """An iteration between question and answer: the graph that both steps use."""

    posed: Posed
    vectors: Tensor
    generated: Tensor
    features: Tensor
    scores: Tensor


class Transcription:
    """The loop's state. `iteration` counts the annotations that were learned from.

    discriminator: whom the generator learns from instead of the student; NOT PRIVATE.
    """

    def __init__(
        self,
        student: StudentNetwork,
        generator: Generator,
        settings: LoopSettings,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        vectors: Tensor | None = None,
        discriminator: Discriminator | None = None,
    ) -> None:
        self.settings, self.seed, self.device = settings, seed, torch.device(device)
        self.student, self.generator = student.to(self.device), generator.to(self.device)
        self.discriminator = discriminator
        self.iteration = 0
        start = random_vectors(settings.batch, generator.latent, seed) if vectors is None else vectors
        if start.shape != (settings.batch, generator.latent):
            raise SettingError(
                f"The generator's inputs are {list(start.shape)}, not {[settings.batch, generator.latent]}."
            )
        self.vectors = nn.Parameter(start.clone().to(self.device), requires_grad=settings.inputs == "trained")
        own = self.student.weights()
        if settings.optimiser == "adam":
            self.student_optimiser: torch.optim.Optimizer = torch.optim.AdamW(
                own, lr=settings.student_rate, weight_decay=settings.decay
            )
        else:
            self.student_optimiser = torch.optim.SGD(own, lr=settings.student_rate, weight_decay=settings.decay)
        trained = [*self.generator.parameters(), *([self.vectors] if settings.inputs == "trained" else [])]
        self.generator_optimiser = torch.optim.Adam(trained, lr=settings.generator_rate)
        self._generator_weights = trained
        self._memory: list[_Remembered] = []
        self._open: _Open | None = None

    def pose(self) -> Posed:
        """Generate the images of this iteration and ask the student; the same question until it is answered."""
        if self._open is None:
            vectors = self._inputs(self.iteration, 0)
            generated = self.generator(vectors)
            images = (generated.detach() * 255).round().to(torch.uint8)
            # What is annotated is what can be stored; the gradient passes the rounding as if it were not there.
            rounded = generated + (images.to(generated.dtype) / 255 - generated).detach()
            features, scores = self.student(rounded)
            posed = Posed(self.iteration, images, probabilities(scores))
            self._open = _Open(posed, vectors, rounded, features, scores)
        return self._open.posed

    def learn(self, annotation: Tensor) -> dict[str, float]:
        """Take the steps of student and generator that follow from the annotation [b, classes]; return their losses."""
        self.pose()
        asked = self._open
        assert asked is not None
        annotation = annotation.to(self.device)
        if annotation.shape != asked.scores.shape:
            raise SettingError(
                f"The annotation is {list(annotation.shape)}, and was asked for {list(asked.scores.shape)}."
            )
        settings = self.settings
        follow = fit_loss(asked.scores, annotation, settings.student_loss)
        own = self.student.weights()
        gradients = torch.autograd.grad(follow, own, retain_graph=settings.generator_steps > 0)
        told = {"student": float(follow.detach())}
        if settings.generator_steps:
            told["generator"] = self._generator_step(asked, follow)
        self._step(own, gradients)
        self._remember(asked, annotation)
        self._open = None
        for step in range(1, settings.generator_steps):
            self._generator_alone(step)
        for step in range(1, settings.student_steps):
            self._again(self.iteration, step)
        self.iteration += 1
        return told

    def finish(self) -> None:
        """Take the student's last steps, on all annotated batches, with a rate that falls to nothing."""
        for step in range(self.settings.final_steps):
            for group in self.student_optimiser.param_groups:
                group["lr"] = self.settings.student_rate * (1 - step / self.settings.final_steps)
            self._again(self.settings.iterations, step)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state between two iterations by name; `restore` takes it."""
        values = {f"student.{name}": value for name, value in self.student.state_dict().items()}
        values |= {f"generator.{name}": value for name, value in self.generator.state_dict().items()}
        values["vectors"] = self.vectors.data
        for name, optimiser in (("student", self.student_optimiser), ("generator", self.generator_optimiser)):
            values |= {f"optimiser.{name}.{key}": value for key, value in optimizer_tensors(optimiser).items()}
        for number, item in enumerate(self._memory):
            values[f"memory.{number}.inputs"], values[f"memory.{number}.annotation"] = item.inputs, item.annotation
        return values

    def restore(self, tensors: dict[str, Tensor], iteration: int) -> None:
        """Go on from what `tensors` gave after `iteration` annotations. Raises ArtefactError if it is no such state."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            head, _, rest = name.partition(".")
            parts.setdefault(head, {})[rest] = value
        try:
            self.student.load_state_dict(parts["student"])
            self.generator.load_state_dict(parts["generator"])
            self.vectors.data.copy_(tensors["vectors"])
            for key, optimiser in (("student", self.student_optimiser), ("generator", self.generator_optimiser)):
                own = {
                    name.partition(".")[2]: value for name, value in parts["optimiser"].items() if name.startswith(key)
                }
                restore_optimizer(optimiser, own)
            memory = parts.get("memory", {})
            self._memory = [
                _Remembered(*(memory[f"{number}.{name}"].to(self.device) for name in ("inputs", "annotation")))
                for number in range(len(memory) // 2)
            ]
        except (KeyError, RuntimeError, ValueError) as error:
            raise ArtefactError(f"The checkpoint is not one of this transcription ({error}). Delete it.") from error
        self.iteration, self._open = iteration, None

    def _inputs(self, iteration: int, step: int) -> Tensor:
        if self.settings.inputs == "trained":
            return self.vectors
        drawn = random_vectors(self.settings.batch, self.generator.latent, self.seed, iteration, step)
        return drawn.to(self.device)

    def _generator_step(self, asked: _Open, follow: Tensor) -> float:
        """Update generator and inputs by L_s + L_g, from the pass that was made for the question."""
        features, scores = asked.features, asked.scores
        if self.discriminator is not None:
            features, scores = self.discriminator(asked.generated)
        loss = self.settings.objective.loss(scores, features)
        self._apply(self.generator_optimiser, self._generator_weights, follow + loss)
        return float(loss.detach())

    def _generator_alone(self, step: int) -> None:
        generated = self.generator(self._inputs(self.iteration, step))
        features, scores = (self.discriminator or self.student)(generated)
        self._apply(self.generator_optimiser, self._generator_weights, self.settings.objective.loss(scores, features))

    def _again(self, iteration: int, step: int) -> None:
        """Take a step of the student on a batch that was annotated before."""
        chosen = int(numpy_generator(self.seed, "annotated before", iteration, step).integers(len(self._memory)))
        item = self._memory[chosen]
        scores = self.student.head(item.inputs) if self.student.frozen else self.student(item.inputs)[1]
        own = self.student.weights()
        loss = fit_loss(scores, item.annotation, self.settings.student_loss)
        self._step(own, torch.autograd.grad(loss, own))

    def _remember(self, asked: _Open, annotation: Tensor) -> None:
        if self.settings.student_steps == 1 and not self.settings.final_steps:
            return
        inputs = asked.features.detach() if self.student.frozen else asked.posed.images
        self._memory = [*self._memory, _Remembered(inputs, annotation)][-self.settings.memory :]

    def _step(self, weights: list[nn.Parameter], gradients: Any) -> None:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        self.student_optimiser.step()
        self.student_optimiser.zero_grad(set_to_none=True)

    @staticmethod
    def _apply(optimiser: torch.optim.Optimizer, weights: list[nn.Parameter], loss: Tensor) -> None:
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
