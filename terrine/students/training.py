"""Training by gradient: what all student kinds but the linear one share.

A student starts as the linear one: its head is fitted to the answers on the frozen backbone, and carried through the
hidden layer where there is one. Heads that start at random would first undo what the backbone knows (Kumar et al.
2022); `start=shared` is for those who want that, as papers have it. Then every step minimises, by Adam with FixMatch's
cosine schedule unless it is to be constant,

    mean over a batch of answers of the negative log-likelihood  +  prior / number of answers  +  a term of the kind

with the linear student's prior (`terrine.students.start`). The term sees images, not answers, so it may look at every
synthetic image. What is kept is a moving average of the weights.

Which moment of the training is kept is decided by answers that were held out, every few steps; when they have not
become likelier for `patience` times, training ends. Held-out answers are released ones: nothing private is asked. A
head on a frozen backbone is then trained again on all answers for as many steps, for it takes seconds. The start is a
moment like any other: where training does not help, the linear student is what is kept.

A training is a function of (material, settings, seed) on one kind of device. All randomness of step k derives from
(seed, k), so a checkpoint needs no generator's state, and one that is killed ends with the bits of one that was not.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from terrine.classifiers import Head, head_from_module, initial_head
from terrine.determinism.randomness import derive_seed, numpy_generator
from terrine.device import reproducible
from terrine.errors import SettingError
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.last_layers import last_parameters
from terrine.pretraining.checkpoint import optimizer_tensors, part, read_checkpoint, restore_optimizer, write_checkpoint
from terrine.students.by_gradient import GradientStudent
from terrine.students.inputs import FrozenInputs, ImageInputs, Inputs, scores_of
from terrine.students.linear import L2
from terrine.students.material import Material, TrainedStudent
from terrine.students.reproducible import identity, one_thread
from terrine.students.sampling import AnswerSplit, draw, split_answers
from terrine.students.start import mean_square_norm, prior, starting_head
from terrine.students.student import Progress

EVALUATIONS = 20
"""How often in a training the held-out answers are asked."""
CHECKPOINT_SECONDS = 60.0
_REPORT_SECONDS = 1.0


def train(
    material: Material,
    settings: GradientStudent,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    work: Path | None = None,
    progress: Progress | None = None,
) -> TrainedStudent:
    """Train a student: see the module's head, and `Student.train` for arguments and errors."""
    device, percent = torch.device(device), settings.percent(material.backbone)
    frozen = percent == 0
    if not frozen:
        last_parameters(material.backbone.network, percent)  # refuses before any work is done
    kept: dict[str, np.ndarray] = {}

    def remember(name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        if name not in kept:
            kept[name] = outer(name, compute)
        return kept[name]

    outer = material.cache
    material = replace(material, cache=remember)
    with reproducible(device):
        groups = [np.arange(len(material.pool.images))]
        if not frozen and material.statistics == "current":
            groups = list(material.pool.by_source().values())
        everything = AnswerSplit(np.arange(len(material.rows)), np.empty(0, np.int64))
        judged = settings.patience is not None
        split = split_answers(np.asarray(material.rows), groups, seed) if judged else everything
        new = partial(
            _Training, material, settings, percent=percent, seed=seed, device=device, work=work, progress=progress
        )
        run = new(split, name="training")
        run.go(run.steps)
        record = run.record()
        if len(split.held_out) and (frozen or record["chosen_step"] == 0):
            run = new(everything, name="refit")
            run.go(record["chosen_step"])
        return TrainedStudent(head_from_module(run.head), run.backbone, record)


class _Training:
    """One training: its state between two steps, and its checkpoint."""

    def __init__(
        self,
        material: Material,
        settings: GradientStudent,
        split: AnswerSplit,
        *,
        name: str,
        percent: float,
        seed: int,
        device: torch.device,
        work: Path | None,
        progress: Progress | None,
    ) -> None:
        self.settings, self.split, self.seed, self.name, self.progress = settings, split, seed, name, progress
        self.rows = np.asarray(material.rows)
        self.steps = settings.total_steps(len(split.kept))
        self.answers = material.answers
        self.targets = torch.from_numpy(material.answers.targets).to(device)
        self.term = settings.term(material.answers.classes)
        self.device = device
        self.backbone: Backbone | None = None
        start = self._start(material, percent, device)
        self.head = start.module().to(device)
        self.inputs: Inputs
        weights = list(self.head.parameters())
        self.share = 0.0
        if percent == 0:
            strengths = {*(("weak",) if settings.augment else ()), *(self.term.strengths if self.term else ())}
            self.inputs = FrozenInputs(
                material,
                self.head,
                strengths=sorted(strengths),
                views=settings.views,
                flip=settings.flip,
                seed=seed,
                device=device,
            )
        else:
            self.backbone = copy.deepcopy(material.backbone).to(device)
            chosen = last_parameters(self.backbone.network, percent)
            total = sum(parameter.numel() for parameter in self.backbone.network.parameters())
            self.share = 100 * sum(parameter.numel() for _, parameter in chosen) / total
            names = {name for name, _ in chosen}
            for parameter_name, parameter in self.backbone.network.named_parameters():
                parameter.requires_grad_(parameter_name in names)
            weights = [parameter for _, parameter in chosen] + weights
            self.inputs = ImageInputs(material, self.backbone, self.head, flip=settings.flip, device=device)
        self.weights = weights
        self.rate = settings.learning_rate or (1e-3 if percent == 0 else 1e-4)
        self.optimizer = torch.optim.AdamW(weights, lr=self.rate, weight_decay=settings.weight_decay)
        self.average = [weight.detach().clone() for weight in weights]
        self.best = [weight.detach().clone() for weight in weights]
        self.best_loss, self.best_step, self.step = math.inf, 0, 0
        self.history: list[dict[str, float]] = []
        self.stopped = False
        labelled = [np.flatnonzero(np.isin(self.rows[split.kept], group)) for group in self.inputs.groups]
        self.labelled = [split.kept[positions] for positions in labelled]
        # A batch of one image has no statistics of its own.
        fewest = 2 if len(self.inputs.groups) > 1 else 1
        self.labelled = [positions if len(positions) >= fewest else positions[:0] for positions in self.labelled]
        if not any(len(positions) for positions in self.labelled):
            raise SettingError("student: no image source has two answered images. Ask more queries.")
        self.checkpoint = work / name if work is not None else None
        self.identity = identity(material, settings, percent, seed, split)
        if self.checkpoint is not None and self.checkpoint.exists():
            self._restore(self.checkpoint)

    def _start(self, material: Material, percent: float, device: torch.device) -> Head:
        """Return the head that the linear student of the kept answers has, or the one that teachers begin with."""
        kept = self.rows[self.split.kept]
        if percent == 0:
            features = material.features(device)[kept]
        else:
            answered = np.zeros(len(material.pool.images), bool)
            answered[kept] = True
            batches = [batch for batch in material.pool.batches if answered[batch].any()]
            out = np.empty((len(answered), material.backbone.feature_dim), np.float32)
            frozen = copy.deepcopy(material.backbone)
            features = features_in_batches(frozen, material.pool.images, batches, material.statistics, device, out=out)[
                kept
            ]
        self.scale = mean_square_norm(features)
        if self.settings.start == "shared":
            return initial_head(features.shape[1], self.answers.classes, self.seed)
        return starting_head(
            features,
            self.answers.at(self.split.kept),
            self.settings.l2,
            self.settings.hidden,
            seed=self.seed,
            device=device,
        )

    def go(self, steps: int) -> None:
        """Train until `steps` are done or the held-out answers say stop; leave the weights that are to be kept."""
        every = max(1, self.steps // EVALUATIONS)
        saved = reported = time.monotonic()
        judged = len(self.split.held_out) > 0
        with one_thread(self.backbone is None and self.device.type == "cpu"):
            if self.step == 0 and judged and not self.history:
                self._evaluate()
            while self.step < steps and not self.stopped:
                self._take_step()
                if judged and (self.step % every == 0 or self.step == steps):
                    self._evaluate()
                now, ends = time.monotonic(), self.step == steps or self.stopped
                if self.progress is not None and (now - reported >= _REPORT_SECONDS or ends):
                    reported = now
                    self.progress(self.step / max(1, steps), self._line(steps))
                if self.checkpoint is not None and (now - saved >= CHECKPOINT_SECONDS or ends):
                    self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
                    self._save(self.checkpoint)
                    saved = now
        _assign(self.weights, self.best if judged else self.average)
        if self.backbone is not None:
            for parameter in self.backbone.parameters():
                parameter.requires_grad_(True)
            self.backbone.eval()

    def record(self) -> dict[str, Any]:
        """Return what is worth telling: which step was kept, and the held-out answers' loss by then and before."""
        judged = len(self.split.held_out) > 0
        return {
            "chosen_step": self.best_step if judged else self.step,
            "steps": self.step,
            "held_out": len(self.split.held_out),
            "trained_share": round(self.share, 3),
            "history": self.history,
        }

    def _line(self, steps: int) -> str:
        told = f", held-out loss {self.history[-1]['held_out_loss']:.4f}" if self.history else ""
        return f"{self.name}: step {self.step} of {steps}{told}"

    def _take_step(self) -> None:
        settings, step = self.settings, self.step
        step_seed = derive_seed(self.seed, "student step", step)
        generator = numpy_generator(step_seed, "student batch")
        torch.manual_seed(step_seed)  # for networks that draw numbers of their own
        positions = draw(self.labelled, settings.train_batch, generator)
        rows = self.rows[positions]
        inputs = (
            self.inputs.weak(rows, derive_seed(step_seed, "answered")) if settings.augment else self.inputs.plain(rows)
        )
        targets = self.targets[torch.from_numpy(positions).to(self.device)]
        loss = self.answers.fit_loss(self.inputs.scores(inputs), targets).mean()
        l2 = settings.l2 if settings.l2 is not None else L2
        loss = loss + prior(self.head, l2, self.scale) / len(self.split.kept)
        if self.term is not None:
            others = draw(self.inputs.groups, self.term.ratio * settings.train_batch, generator)
            loss = loss + self.term.loss(self.inputs, others, derive_seed(step_seed, "unanswered"))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
            if settings.schedule == "cosine":
                group["lr"] *= math.cos(7 * math.pi * step / (16 * self.steps))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.step += 1
        # A short memory at first, so that the average does not stay at the start: 0.1, 0.18, ... up to its own share.
        keep = min(settings.ema, self.step / (self.step + 9))
        with torch.no_grad():
            for average, weight in zip(self.average, self.weights, strict=True):
                average.lerp_(weight, 1 - keep)

    def _evaluate(self) -> None:
        current = [weight.detach().clone() for weight in self.weights]
        _assign(self.weights, self.average)
        held = self.split.held_out
        scores = scores_of(self.inputs, self.rows[held])
        loss = float(self.answers.held_out_loss(scores, self.targets[torch.from_numpy(held).to(self.device)]).mean())
        _assign(self.weights, current)
        self.history.append({"step": self.step, "held_out_loss": loss})
        if loss < self.best_loss:
            self.best_loss, self.best_step = loss, self.step
            self.best = [weight.clone() for weight in self.average]
        patience = self.settings.patience
        if patience is not None and len(self.history) > patience:
            self.stopped = min(row["held_out_loss"] for row in self.history[-patience:]) > self.best_loss

    def _save(self, path: Path) -> None:
        tensors: dict[str, Tensor] = {}
        for number, weight in enumerate(self.weights):
            tensors[f"weight.{number}"], tensors[f"average.{number}"] = weight, self.average[number]
            tensors[f"best.{number}"] = self.best[number]
        tensors |= {f"adam.{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        if self.term is not None:
            tensors |= {f"term.{name}": value for name, value in self.term.state().items()}
        best_loss = self.best_loss if math.isfinite(self.best_loss) else None
        state = {"step": self.step, "best_step": self.best_step, "best_loss": best_loss, "stopped": self.stopped}
        write_checkpoint(path, tensors, {"run": self.identity, "history": self.history, **state})

    def _restore(self, path: Path) -> None:
        tensors, description = read_checkpoint(path, self.identity)
        tensors = {name: value.to(self.device) for name, value in tensors.items()}
        for name, targets in (("weight", self.weights), ("average", self.average), ("best", self.best)):
            _assign(targets, [tensors[f"{name}.{number}"] for number in range(len(targets))])
        restore_optimizer(self.optimizer, part(tensors, "adam."))
        if self.term is not None:
            self.term.load(part(tensors, "term."))
        self.step, self.best_step, self.stopped = (description[key] for key in ("step", "best_step", "stopped"))
        self.best_loss = math.inf if description["best_loss"] is None else description["best_loss"]
        self.history = description["history"]


@torch.no_grad()
def _assign(targets: list[Any], values: list[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
