"""Visual-prompt teachers (Prom-PATE): a frozen source, reprogrammed by a trained border and a label mapping.

003_8743359052d80cf0, section 3.2. An image x of the target task is shrunk, padded to the source's canvas and framed by
a trained pattern ω1; what the frozen source f makes of it is mapped to the target's classes by ω2:

    x̂ = M ⊙ ω1 + (1 - M) ⊙ pad(resize(x))                    (1)
    y = softmax(mapping(ω2; f(x̂)))                            (2)

The mask M is one outside the shrunken image. Without it (`mask` false, the paper's Table 9) the pattern lies over the
whole canvas: x̂ = ω1 + pad(resize(x)). Only ω = (ω1, ω2) is trained, by Adam, and makes up a teacher.

Many teachers at once: the source is the same for all and frozen, so one forward and one backward pass over a batch that
mixes the records of many teachers serves all of them, each record in the frame of its own teacher. The loss is the sum
of the teachers' own mean losses, so a teacher's gradient is the one it would have alone. Under `current` statistics
batch normalisation is taken teacher by teacher (`terrine.models.grouped_statistics`). No value of another teacher's
records enters a teacher: of those who share its pass it is touched by how many records they have alone, as much as the
choice of a kernel for a batch of that size can touch the last bits of a sum.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.errors import ArtefactError, InputError, SettingError
from terrine.heads import initial_head
from terrine.models.backbone import Backbone, as_float
from terrine.models.grouped_statistics import grouped_statistics
from terrine.models.statistics import Statistics, batch_statistics
from terrine.parallel import side_by_side
from terrine.randomness import numpy_generator, torch_generator
from terrine.teachers.kind import Arrays, Queries, Records, rows_of, vote_type
from terrine.teachers.linear import start_seed
from terrine.teachers.networks import epoch_batches
from terrine.teachers.stacked_adam import StackedAdam

Mapping = Literal["random", "fc1", "fc2"]

INNER_SHARE = 192 / 224
"""Side of the shrunken image, in sides of the canvas, that the paper found best (Table 11)."""


@dataclass(frozen=True)
class PromptSettings:
    """How a prompt is shaped and trained; the defaults are the paper's.

    inner: side of the shrunken image in pixels; None is 192/224 of the canvas. mask: see the module's docstring.
    mapping: `random`: each class is one of the source's outputs, drawn beforehand and not trained; `fc1`, `fc2`: one
    or two layers, the first of two with `hidden` units. learning_rate: of Adam, times `decay` after every epoch (the
    paper does not say after what). batch: records of a teacher in a step. together: most records, of all teachers, in
    one pass, and most queries where statistics are the source's own: with the passes that run side by side (one a core)
    it bounds the memory. Under current statistics a vote takes a query batch at once, since it is its own statistics.
    """

    inner: int | None = None
    mask: bool = True
    mapping: Mapping = "fc1"
    hidden: int = 64
    epochs: int = 10
    learning_rate: float = 0.05
    decay: float = 0.7
    batch: int = 16
    together: int = 256
    statistics: Statistics = "current"
    initialisation: Literal["shared", "own"] = "shared"

    def __post_init__(self) -> None:
        if self.mapping not in ("random", "fc1", "fc2"):
            raise SettingError(f"teachers.prompt.mapping: '{self.mapping}' is unknown. Use random, fc1 or fc2.")
        for name, least in (("hidden", 1), ("epochs", 1), ("batch", 2), ("together", 2)):
            if getattr(self, name) < least:
                raise SettingError(f"teachers.prompt: {name} is {getattr(self, name)}. It must be {least} or more.")
        if self.together < self.batch:
            raise SettingError(
                f"teachers.prompt: together is {self.together} and batch is {self.batch}. A step of one teacher needs "
                "batch records in one pass: raise together, or lower batch."
            )
        if not self.learning_rate > 0 or not 0 < self.decay <= 1:
            raise SettingError(
                f"teachers.prompt: learning_rate is {self.learning_rate:g} and decay is {self.decay:g}. Both must be "
                "above 0, and decay at most 1."
            )


class PromptTeachers:
    """The kind `prompt`, see `terrine.teachers.kind`. A state is the border and the mapping:

    border           float32 [C, pixels], the pattern where it is trained: outside the shrunken image, or everywhere
    outputs          int64 [classes], of `random`: the source's output that stands for each class
    weight, bias     [classes, outputs or hidden] and [classes], of fc1 and fc2
    hidden_weight, hidden_bias      [hidden, outputs] and [hidden], of fc2

    backbone: the frozen source; its canvas is the side its network works at. Raises SettingError for a backbone that
    takes no images, an inner side that leaves no border, or fewer outputs than classes under `random`.
    """

    inputs: Literal["features", "images"] = "images"
    stacked = True
    block = 64

    def __init__(self, backbone: Backbone, classes: int, settings: PromptSettings | None = None) -> None:
        if backbone.describe()["kind"] == "columns":
            raise SettingError("teachers.kind=prompt frames images, and a table has none. Use linear or estimator.")
        # A frozen copy: the backbone is shared with others, who may train it. Channels last makes convolutions a fifth
        # faster, forth and back.
        self.backbone = copy.deepcopy(backbone).requires_grad_(False).to(memory_format=torch.channels_last)
        self.classes = classes
        self.settings = settings or PromptSettings()
        self.canvas = int(getattr(backbone.network, "side", None) or backbone.size)
        inner = self.settings.inner
        self.inner = max(1, round(INNER_SHARE * self.canvas)) if inner is None else inner
        if not 1 <= self.inner < self.canvas and (self.settings.mask or self.inner != self.canvas):
            raise SettingError(
                f"teachers.prompt.inner is {self.inner} on a canvas of {self.canvas}. Leave a border: use 1 to "
                f"{self.canvas - 1}."
            )
        if self.settings.mapping == "random" and backbone.feature_dim < classes:
            raise SettingError(
                f"teachers.prompt.mapping=random needs an output of the source for each of {classes} classes, and it "
                f"has {backbone.feature_dim}. Use mapping=fc1."
            )
        frame = torch.ones(self.canvas, self.canvas, dtype=torch.bool)
        if self.settings.mask:
            first = (self.canvas - self.inner) // 2
            frame[first : first + self.inner, first : first + self.inner] = False
        self.positions = frame.flatten().nonzero().flatten()

    def initial(self, seed: int, teacher: int) -> dict[str, Tensor]:
        """Return a teacher's ω before training: no pattern, and a mapping from (seed, teacher) as settings say."""
        settings, outputs = self.settings, self.backbone.feature_dim
        start = start_seed(seed, teacher, settings.initialisation)
        omega = {"border": torch.zeros(self.backbone.channels, len(self.positions))}
        if settings.mapping == "random":
            chosen = numpy_generator(start, "label mapping").permutation(outputs)[: self.classes]
            return omega | {"outputs": torch.from_numpy(chosen.astype(np.int64))}
        inputs = outputs
        if settings.mapping == "fc2":
            first = initial_head(outputs, settings.hidden, start)
            omega |= {"hidden_weight": torch.tensor(first.weight), "hidden_bias": torch.tensor(first.bias)}
            inputs = settings.hidden
        head = initial_head(inputs, self.classes, start)
        return omega | {"weight": torch.tensor(head.weight), "bias": torch.tensor(head.bias)}

    def place(self, images: Tensor) -> Tensor:
        """Return pad(resize(x)): float images [B, C, canvas, canvas] of uint8 or float images [B, C, H, W]."""
        small = F.interpolate(
            as_float(images), size=(self.inner, self.inner), mode="bilinear", align_corners=False, antialias=True
        )
        before = (self.canvas - self.inner) // 2
        after = self.canvas - self.inner - before
        return F.pad(small, (before, after, before, after))

    def framed(self, placed: Tensor, border: Tensor) -> Tensor:
        """Return x̂ [B, C, canvas, canvas] of placed images and the borders [B, C, pixels] or [1, C, pixels]."""
        pattern = border.new_zeros((len(border), border.shape[1], self.canvas * self.canvas))
        pattern = pattern.index_copy(2, self.positions.to(border.device), border)
        # Outside the shrunken image the padding is zero, so the sum is equation (1), and with no mask it is Table 9's.
        return placed + pattern.unflatten(2, (self.canvas, self.canvas))

    def scores(self, outputs: Tensor, omega: dict[str, Tensor], own: Tensor) -> Tensor:
        """Return scores [B, classes] of the source's outputs [B, O] under the mapping of row `own` [B] of stacked ω."""
        if "outputs" in omega:
            return outputs.gather(1, omega["outputs"][own])
        if "hidden_weight" in omega:
            outputs = F.relu(_apply(outputs, omega["hidden_weight"], omega["hidden_bias"], own))
        return _apply(outputs, omega["weight"], omega["bias"], own)

    def train(
        self, records: Records, teachers: Sequence[int], *, seed: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield (number, state) of each teacher."""
        device = torch.device(device)
        if records.inputs.dtype != np.uint8 or records.inputs.ndim != 4:
            raise InputError(
                f"Prompt teachers learn from images, uint8 [records, C, H, W], not from {records.inputs.dtype} "
                f"{records.inputs.shape}."
            )
        rows = rows_of(records.assignment, teachers)
        for teacher, own in zip(teachers, rows, strict=True):
            if len(own) < 2 and self.settings.statistics == "current":
                raise InputError(
                    f"Teacher {teacher} has {len(own)} record, and current statistics need two. Use fewer teachers, or "
                    "teachers.statistics=original."
                )
        self.backbone.to(device)
        size = max(1, self.settings.together // self.settings.batch)
        numbered = list(zip(teachers, rows, strict=True))
        parts = [numbered[first : first + size] for first in range(0, len(numbered), size)]
        for finished in side_by_side(lambda part: self._train_together(records, part, seed, device), parts, device):
            yield from finished

    def _train_together(
        self, records: Records, part: list[tuple[int, np.ndarray]], seed: int, device: torch.device
    ) -> list[tuple[int, Arrays]]:
        """Train some teachers, each with its record numbers, in shared passes through the source."""
        settings = self.settings
        starts = [self.initial(seed, teacher) for teacher, _ in part]
        omega = {name: torch.stack([start[name] for start in starts]).to(device) for name in starts[0]}
        trained = {name: value for name, value in omega.items() if value.is_floating_point()}
        images = [torch.from_numpy(np.ascontiguousarray(records.inputs[rows])).to(device) for _, rows in part]
        labels = [torch.from_numpy(records.labels[rows].astype(np.int64, copy=False)).to(device) for _, rows in part]
        generators = [torch_generator(seed, "teacher shuffle", teacher) for teacher, _ in part]
        adam = StackedAdam(list(trained.values()))
        for epoch in range(settings.epochs):
            batches = [
                epoch_batches(len(own), settings.batch, generator)
                for own, generator in zip(labels, generators, strict=True)
            ]
            for step in range(max(map(len, batches))):
                active = [number for number, own in enumerate(batches) if step < len(own)]
                chosen = [batches[number][step].to(device) for number in active]
                own = torch.repeat_interleave(
                    torch.tensor(active, device=device), torch.tensor([len(index) for index in chosen], device=device)
                )
                inputs = torch.cat([images[number][index] for number, index in zip(active, chosen, strict=True)])
                targets = torch.cat([labels[number][index] for number, index in zip(active, chosen, strict=True)])
                gradients = self._gradients(omega, trained, self.place(inputs), targets, own)
                adam.step(gradients, active, settings.learning_rate * settings.decay**epoch)
        return [
            (teacher, {name: value[number].cpu().numpy() for name, value in omega.items()})
            for number, (teacher, _) in enumerate(part)
        ]

    def _gradients(
        self, omega: dict[str, Tensor], trained: dict[str, Tensor], placed: Tensor, targets: Tensor, own: Tensor
    ) -> list[Tensor]:
        """Return the gradient of every teacher's mean cross-entropy over its own records, stacked as ω is."""
        leaves = {name: value.detach().requires_grad_() for name, value in trained.items()}
        stacked = omega | leaves
        with torch.enable_grad(), self._statistics(own):
            outputs = self.backbone.network(self.framed(placed, stacked["border"][own]))
            losses = F.cross_entropy(self.scores(outputs, stacked, own), targets, reduction="none")
            counts = torch.bincount(own, minlength=len(stacked["border"]))
            loss = (losses / counts[own]).sum()
        return list(torch.autograd.grad(loss, list(leaves.values())))

    def _statistics(self, own: Tensor) -> AbstractContextManager[Any]:
        if self.settings.statistics == "original":
            return batch_statistics(self.backbone, "original")
        return grouped_statistics(own)

    @torch.no_grad()
    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str = "cpu") -> np.ndarray:
        """Return votes [queries, teachers]: under `current` statistics each teacher and each batch by itself."""
        device = torch.device(device)
        stacked = [self._checked(state, number) for number, state in enumerate(states)]
        votes = np.empty((len(queries.inputs), len(stacked)), vote_type(self.classes))
        self.backbone.to(device)

        def compute(batch: np.ndarray) -> None:
            placed = self.place(torch.from_numpy(np.ascontiguousarray(queries.inputs[batch])).to(device))
            own = torch.zeros(len(placed), dtype=torch.int64, device=device)
            with torch.no_grad(), batch_statistics(self.backbone, self.settings.statistics):
                for teacher, state in enumerate(stacked):
                    omega = {name: torch.from_numpy(value)[None].to(device) for name, value in state.items()}
                    outputs = self.backbone.network(self.framed(placed, omega["border"]))
                    votes[batch, teacher] = self.scores(outputs, omega, own).argmax(dim=1).cpu().numpy()

        parts = list(queries.batches)
        if self.settings.statistics == "original":
            together = self.settings.together
            parts = [part for own in parts for part in np.array_split(own, -(-len(own) // together))]
        for _ in side_by_side(compute, parts, device):
            pass
        return votes

    def _checked(self, state: Arrays, number: int) -> Arrays:
        expected = {name: tuple(value.shape) for name, value in self.initial(0, 0).items()}
        found = {name: value.shape for name, value in state.items()}
        if found != expected:
            raise ArtefactError(
                f"Prompt teacher {number} holds arrays {found} where {expected} are wanted. The teachers were trained "
                "with other settings or another backbone: run the stage 'teach' again."
            )
        return {name: np.array(value) for name, value in state.items()}


def _apply(values: Tensor, weight: Tensor, bias: Tensor, own: Tensor) -> Tensor:
    """Return values [B, I] times weight [T, O, I] plus bias [T, O], row b by number own[b]; own is ascending."""
    if len(weight) == 1:
        return F.linear(values, weight[0], bias[0])
    return torch.einsum("bi,boi->bo", values, weight[own]) + bias[own]
