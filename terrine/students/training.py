"""Training by gradient descent (`terrine.students.gradient`).

The initial head is the linear student's, fitted to the answers on the frozen backbone. A random initial head would
first destroy what the backbone has learned (Kumar et al. 2022); `start=shared` uses one anyway, as published. Every
step then minimises, by Adam with FixMatch's cosine schedule unless it is constant,

    mean over a batch of answers of the negative log-likelihood  +  prior / number of answers  +  unlabelled loss

with the linear student's prior. The unlabelled loss uses images, not answers, so it may use every synthetic image. The
result is a moving average of the weights.

Held-out answers decide every few steps which step is kept; training ends when their likelihood has not improved
for `patience` evaluations. Held-out answers are released answers, not private records. A head on a frozen backbone is
then trained again on all answers up to the chosen step, because that takes seconds. Step 0 is a candidate like any
other: if training does not help, the linear student is kept.

A training is a function of (data, settings, seed) on one kind of device. All randomness of step k derives from (seed,
k), so a checkpoint needs no generator state, and a training that was killed and resumed ends with the same bits.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from terrine.determinism.randomness import derive_seed, numpy_generator
from terrine.device import reproducible
from terrine.errors import SettingError
from terrine.heads import Head, head_from_module, initial_head
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.weights import last_parameters
from terrine.pretraining.checkpoint import optimizer_tensors, part, read_checkpoint, restore_optimizer, write_checkpoint
from terrine.students.inputs import FrozenInputs, ImageInputs, Inputs, View, compute_scores
from terrine.students.linear import L2, fit, mean_square_norm
from terrine.students.student import Progress, StudentData, TrainedStudent

if TYPE_CHECKING:
    from terrine.students.gradient import GradientStudent, SemiSupervisedStudent

EVALUATIONS = 20
"""Number of evaluations on held-out answers in a training."""
HELD_OUT = 8
"""One in this number of answers is held out to decide when to stop."""
FEWEST_HELD_OUT = 64
"""Groups of images with fewer answers have no held-out ones."""
CHECKPOINT_SECONDS = 60.0
_REPORT_SECONDS = 1.0


@dataclass(frozen=True, eq=False)
class AnswerSplit:
    """Positions of the answers that are fitted, and of those that decide when to stop."""

    kept: np.ndarray
    held_out: np.ndarray


def train(
    data: StudentData,
    settings: GradientStudent,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    work: Path | None = None,
    progress: Progress | None = None,
) -> TrainedStudent:
    """Train a student; see the module, and `Student.train` for arguments and errors."""
    device, percent = torch.device(device), settings.percent(data.backbone)
    frozen = percent == 0
    if not frozen:
        last_parameters(data.backbone.network, percent)  # refuses before any work is done
    kept: dict[str, np.ndarray] = {}

    def remember(name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        if name not in kept:
            kept[name] = outer(name, compute)
        return kept[name]

    outer = data.cache
    data = replace(data, cache=remember)
    with reproducible(device):
        groups = [np.arange(len(data.pool.images))]
        if not frozen and data.statistics == "current":
            groups = list(data.pool.by_source().values())
        everything = AnswerSplit(np.arange(len(data.rows)), np.empty(0, np.int64))
        judged = settings.patience is not None
        split = split_answers(np.asarray(data.rows), groups, seed) if judged else everything
        new = partial(
            _Training, data, settings, percent=percent, seed=seed, device=device, work=work, progress=progress
        )
        run = new(split, name="training")
        run.run(run.steps)
        record = run.record()
        if len(split.held_out) and (frozen or record["chosen_step"] == 0):
            run = new(everything, name="refit")
            run.run(record["chosen_step"])
        return TrainedStudent(head_from_module(run.head), run.backbone, record)


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Compute small products by one thread if `wanted`: the same bits on any number of cores, and no slower."""
    threads = torch.get_num_threads()
    try:
        if wanted:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


def _identity(
    data: StudentData, settings: GradientStudent, percent: float, seed: int, split: AnswerSplit
) -> dict[str, Any]:
    """Return all that the result depends on as JSON values; for the images, their shape and a sample of up to 64."""

    def digest(*arrays: np.ndarray) -> str:
        summary = hashlib.sha256()
        for array in arrays:
            summary.update(np.ascontiguousarray(array).tobytes())
        return summary.hexdigest()

    images = data.pool.images
    weights = [value.detach().cpu().numpy() for value in data.backbone.state_dict().values()]
    return {
        "settings": settings.model_dump(mode="json", exclude={"batch"}),
        "trainable": percent,
        "seed": seed,
        "statistics": data.statistics,
        "answers": digest(np.asarray(data.rows), data.answers.targets),
        "likelihood": data.answers.described,
        "held out": digest(split.held_out),
        "images": {"shape": list(images.shape), "sample": digest(images[:: max(1, len(images) // 64)])},
        "backbone": {**data.backbone.describe(), "weights": digest(*weights)},
    }


class _Training:
    """State of one training between two steps, and its checkpoint."""

    def __init__(
        self,
        data: StudentData,
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
        self.rows = np.asarray(data.rows)
        epochs = settings.epochs
        self.steps = settings.steps if epochs is None else epochs * -(-len(split.kept) // settings.train_batch)
        self.answers = data.answers
        self.targets = torch.from_numpy(data.answers.targets).to(device)
        self.semi = cast("SemiSupervisedStudent", settings) if settings.uses_unlabelled else None
        self.state = self.semi.initial_state(data.answers.classes) if self.semi else {}
        self.device = device
        self.backbone: Backbone | None = None
        start = self._start(data, percent, device)
        self.head = start.module().to(device)
        self.inputs: Inputs
        weights = list(self.head.parameters())
        self.share = 0.0
        if percent == 0:
            weak: tuple[View, ...] = ("weak",) if settings.augment else ()
            self.inputs = FrozenInputs(
                data,
                self.head,
                strengths=sorted({*weak, *settings.views_wanted}),
                views=settings.views,
                flip=settings.flip,
                seed=seed,
                device=device,
            )
        else:
            self.backbone = copy.deepcopy(data.backbone).to(device)
            chosen = last_parameters(self.backbone.network, percent)
            total = sum(parameter.numel() for parameter in self.backbone.network.parameters())
            self.share = 100 * sum(parameter.numel() for _, parameter in chosen) / total
            names = {name for name, _ in chosen}
            for parameter_name, parameter in self.backbone.network.named_parameters():
                parameter.requires_grad_(parameter_name in names)
            weights = [parameter for _, parameter in chosen] + weights
            how: dict[str, Any] = {"flip": settings.flip, "micro_batch": settings.micro_batch}
            self.inputs = ImageInputs(data, self.backbone, self.head, device=device, **how)
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
        # A batch of one image has no batch statistics.
        fewest = 2 if len(self.inputs.groups) > 1 else 1
        self.labelled = [positions if len(positions) >= fewest else positions[:0] for positions in self.labelled]
        if not any(len(positions) for positions in self.labelled):
            raise SettingError("student: no image source has two answered images. Ask more queries.")
        self.checkpoint = work / name if work is not None else None
        self.identity = _identity(data, settings, percent, seed, split)
        if self.checkpoint is not None and self.checkpoint.exists():
            self._restore(self.checkpoint)

    def _start(self, data: StudentData, percent: float, device: torch.device) -> Head:
        """Return the linear student's head for the answers that are fitted, or the initial head of all teachers."""
        kept = self.rows[self.split.kept]
        if percent == 0:
            features = data.features(device)[kept]
        else:
            answered = np.zeros(len(data.pool.images), bool)
            answered[kept] = True
            batches = [batch for batch in data.pool.batches if answered[batch].any()]
            out = np.empty((len(answered), data.backbone.feature_dim), np.float32)
            frozen = copy.deepcopy(data.backbone)
            features = features_in_batches(frozen, data.pool.images, batches, data.statistics, device, out=out)[kept]
        self.scale = mean_square_norm(features)
        if self.settings.start == "shared":
            return initial_head(features.shape[1], self.answers.classes, self.seed)
        return fit(features, self.answers.at(self.split.kept), self.settings.l2, seed=self.seed, device=device)

    def run(self, steps: int) -> None:
        """Train for `steps` steps or until early stopping, and set the weights to the result."""
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
                    loss = f", held-out loss {self.history[-1]['held_out_loss']:.4f}" if self.history else ""
                    self.progress(self.step / max(1, steps), f"{self.name}: step {self.step} of {steps}{loss}")
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
        """Return the chosen step, and the history of the held-out loss."""
        judged = len(self.split.held_out) > 0
        return {
            "chosen_step": self.best_step if judged else self.step,
            "steps": self.step,
            "held_out": len(self.split.held_out),
            "trained_share": round(self.share, 3),
            "history": self.history,
        }

    def _take_step(self) -> None:
        settings, step = self.settings, self.step
        step_seed = derive_seed(self.seed, "student step", step)
        generator = numpy_generator(step_seed, "student batch")
        torch.manual_seed(step_seed)  # for networks with dropout
        positions = draw(self.labelled, settings.train_batch, generator)
        rows = self.rows[positions]
        if settings.augment:
            inputs = self.inputs.view("weak", rows, derive_seed(step_seed, "answered"))
        else:
            inputs = self.inputs.plain(rows)
        targets = self.targets[torch.from_numpy(positions).to(self.device)]
        loss = self.answers.loss(self.inputs.scores(inputs), targets).mean()
        l2 = settings.l2 if settings.l2 is not None else L2
        (layer,) = (layer for layer in self.head.modules() if isinstance(layer, nn.Linear))
        loss = loss + 0.5 * l2 * self.scale * layer.weight.square().sum() / len(self.split.kept)
        if self.semi is not None:
            others = draw(self.inputs.groups, self.semi.unlabelled_ratio * settings.train_batch, generator)
            own_seed = derive_seed(step_seed, "unanswered")
            loss = loss + self.semi.unlabelled_loss(self.inputs, others, own_seed, self.state)
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
        scores = compute_scores(self.inputs, self.rows[held])
        loss = float(self.answers.loss(scores, self.targets[torch.from_numpy(held).to(self.device)]).mean())
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
        tensors |= {f"state.{name}": value for name, value in self.state.items()}
        best_loss = self.best_loss if math.isfinite(self.best_loss) else None
        state = {"step": self.step, "best_step": self.best_step, "best_loss": best_loss, "stopped": self.stopped}
        write_checkpoint(path, tensors, {"run": self.identity, "history": self.history, **state})

    def _restore(self, path: Path) -> None:
        tensors, description = read_checkpoint(path, self.identity)
        tensors = {name: value.to(self.device) for name, value in tensors.items()}
        for name, targets in (("weight", self.weights), ("average", self.average), ("best", self.best)):
            _assign(targets, [tensors[f"{name}.{number}"] for number in range(len(targets))])
        restore_optimizer(self.optimizer, part(tensors, "adam."))
        self.state = part(tensors, "state.")
        self.step, self.best_step, self.stopped = (description[key] for key in ("step", "best_step", "stopped"))
        self.best_loss = math.inf if description["best_loss"] is None else description["best_loss"]
        self.history = description["history"]


@torch.no_grad()
def _assign(targets: list[Any], values: list[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def split_answers(rows: np.ndarray, groups: list[np.ndarray], seed: int) -> AnswerSplit:
    """Hold out one answer in `HELD_OUT` of every group that has at least `FEWEST_HELD_OUT`."""
    held: list[np.ndarray] = []
    for number, group in enumerate(groups):
        own = np.flatnonzero(np.isin(rows, group))
        if len(own) >= FEWEST_HELD_OUT:
            held.append(numpy_generator(seed, "student held out", number).permutation(own)[: len(own) // HELD_OUT])
    held_out = np.sort(np.concatenate(held)) if held else np.empty(0, np.int64)
    return AnswerSplit(np.setdiff1d(np.arange(len(rows)), held_out), held_out)


def draw(groups: list[np.ndarray], count: int, generator: np.random.Generator) -> np.ndarray:
    """Return up to `count` members of one group, which is drawn with a probability proportional to its size."""
    sizes = np.array([len(group) for group in groups], float)
    group = groups[generator.choice(len(groups), p=sizes / sizes.sum())]
    if len(group) <= count:
        return group
    return group[generator.choice(len(group), count, replace=False, shuffle=False)]
