"""Visual-prompt teachers (Prom-PATE): a frozen source, reprogrammed by a trained border and a label mapping.

Li et al. (2023), section 3.2. An image x of the target task is shrunk, padded to the source's input size (the canvas)
and framed by a trained pattern ω1; ω2 maps the outputs of the frozen source f to the target's classes:

    x̂ = M ⊙ ω1 + (1 - M) ⊙ pad(resize(x))                    (1)
    y = softmax(mapping(ω2; f(x̂)))                            (2)

The mask M is one outside the shrunken image. Without it (`mask` false, the paper's Table 9) the pattern covers the
whole canvas: x̂ = ω1 + pad(resize(x)). A teacher consists of ω = (ω1, ω2), trained by Adam.

The frozen source is shared, so one forward and one backward pass over a batch serves many teachers; each record gets
its own teacher's frame. The loss is the sum of the teachers' mean losses, so a teacher's gradient equals that of a
separate pass. Under `current` statistics batch normalisation is computed per teacher (`terrine.models.statistics`).

Each teacher passed to `train` has a fixed number of places in every pass of its group, even if it has fewer records
than places or none; unused places are masked padding with weight zero. So the shapes of all passes depend only on the
settings and on which teachers are trained, and a teacher's result is the same to the bit whatever others' records are.
The largest teacher determines the number of passes; a teacher skips the passes for which it has no batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import model_validator

from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import numpy_generator, torch_generator
from terrine.device import fixed_kernels
from terrine.errors import ArtefactError, SettingError
from terrine.geometry import in_words
from terrine.queries import Queries
from terrine.settings import Field, Settings, Unit
from terrine.teachers.base import TeacherContext, TeacherKind, Teachers, start_seed
from terrine.teachers.records import Arrays, Records, teacher_rows, vote_type

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from terrine.models.backbone import Backbone
    from terrine.teachers.base import Device, TrainedStates

INNER_SHARE = 192 / 224
"""Side of the shrunken image relative to the canvas, the best of the paper's Table 11."""


class Prompt(Settings):
    """Shape and training of a prompt; the defaults are those of Li et al. 2023."""

    inner: Annotated[int | None, Unit("pixels")] = Field(None, ge=1)
    """Side of the shrunken image on the source's canvas. null: 192/224 of the canvas, the best in Table 11."""
    mask: bool = True
    """Train only the frame around the image. false: the pattern also covers the image (Table 9)."""
    mapping: Literal["random", "fc1", "fc2"] = "fc1"
    """ω2, the mapping from source outputs to classes: random and fixed, or one (fc1) or two (fc2) trained layers."""
    hidden: Annotated[int, Unit("units")] = Field(64, ge=1)
    """mapping=fc2: width of the first layer."""
    epochs: int = Field(10, ge=1)
    """Passes over a teacher's records."""
    learning_rate: float = Field(0.05, gt=0)
    """Adam learning rate."""
    decay: float = Field(0.7, gt=0, le=1)
    """Factor of the learning rate after each epoch. The paper does not state the interval."""
    batch: Annotated[int, Unit("records")] = Field(16, ge=2)
    """Records per teacher and step."""
    together: Annotated[int, Unit("places")] = Field(256, ge=2)
    """Maximum number of records of all teachers in one pass through the source. It limits memory during training and
    during votes with original statistics, per parallel pass (one per core, or one on a GPU). Votes with current
    statistics take a whole query batch."""

    @model_validator(mode="after")
    def _check_pass_size(self) -> Prompt:
        if self.together < self.batch:
            raise ValueError(
                f"together={self.together} is less than teachers.prompt.batch={self.batch}, the records of one "
                "teacher in a step. Raise it, or lower the batch"
            )
        return self


class PromptTeachers(Teachers):
    """Prom-PATE: visual prompts on one frozen source (Li et al. 2023, section 3.2)."""

    shares_passes: ClassVar[bool] = True
    inputs: ClassVar[Literal["features", "images"]] = "images"

    kind: Literal["prompt"] = "prompt"
    prompt: Prompt = Prompt()

    def check(self, run: Any) -> None:
        """Raise ValueError if images are not square, or leave no border on a canvas of known side length."""
        super().check(run)
        if not isinstance(run.data.size, int):
            raise ValueError(
                f"teachers.kind=prompt puts square images on a square canvas, and data.size={list(run.data.size)}. Set "
                "data.size to one number"
            )
        canvas, inner = run.backbone.side(run.data.size), self.prompt.inner
        if canvas is not None and inner is not None and inner >= canvas + (not self.prompt.mask):
            raise ValueError(
                f"teachers.prompt.inner={inner} leaves no border on a canvas of {canvas}. Use 1 to {canvas - 1}"
            )

    def build(self, context: TeacherContext) -> PromptKind:
        return PromptKind(self, context.backbone(), context.classes)


class PromptKind(TeacherKind):
    """Trains teachers of the kind `prompt`.

    A state contains the border and the mapping:

    border           float32 [C, pixels], the trained pattern: outside the shrunken image, or everywhere
    outputs          int64 [classes], for `random`: the source's output for each class
    weight, bias     [classes, outputs or hidden] and [classes], for fc1 and fc2
    hidden_weight, hidden_bias      [hidden, outputs] and [hidden], for fc2

    `backbone` is the frozen source, whose input side is the canvas.

    Attributes:
        places: Number of places per teacher in a pass: at least 3, since batches of two become one batch of three if
            there are three records.

    Raises:
        SettingError: The backbone takes no images, the inner side leaves no border, or `random` has too few outputs.
    """

    def __init__(self, settings: PromptTeachers, backbone: Backbone, classes: int) -> None:
        import torch

        from terrine.models.statistics import min_batch_size

        if backbone.describe()["kind"] == "columns":
            raise SettingError("teachers.kind=prompt needs images, and a table has none. Use linear or estimator.")
        # A frozen copy, since other code may train the shared backbone. Channels last makes convolutions a fifth faster
        # in both passes.
        self.backbone = copy.deepcopy(backbone).requires_grad_(False)
        self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.settings, self.prompt, self.classes = settings, settings.prompt, classes
        canvas = getattr(backbone.network, "side", None) or backbone.size
        if not isinstance(canvas, int):
            raise SettingError(f"Prompts take square images, and these have {in_words(canvas)}.")
        self.canvas: int = canvas
        inner = self.prompt.inner
        self.inner = max(1, round(INNER_SHARE * self.canvas)) if inner is None else inner
        if not 1 <= self.inner < self.canvas and (self.prompt.mask or self.inner != self.canvas):
            raise SettingError(
                f"teachers.prompt.inner is {self.inner} on a canvas of {self.canvas}. Leave a border: use 1 to "
                f"{self.canvas - 1}."
            )
        if self.prompt.mapping == "random" and backbone.feature_dim < classes:
            raise SettingError(
                f"teachers.prompt.mapping=random needs an output of the source for each of {classes} classes, and it "
                f"has {backbone.feature_dim}. Use mapping=fc1."
            )
        frame = torch.ones(self.canvas, self.canvas, dtype=torch.bool)
        if self.prompt.mask:
            first = (self.canvas - self.inner) // 2
            frame[first : first + self.inner, first : first + self.inner] = False
        self.positions = frame.flatten().nonzero().flatten()
        self.min_records = min_batch_size(settings.statistics)
        self.places = max(self.prompt.batch, 3)

    def initial(self, seed: int, teacher: int) -> dict[str, Tensor]:
        """Return a teacher's initial ω: a zero pattern, and a mapping drawn from (seed, teacher)."""
        import torch

        from terrine.heads import initial_head

        prompt, outputs = self.prompt, self.backbone.feature_dim
        start = start_seed(seed, teacher, self.settings.initialisation)
        omega = {"border": torch.zeros(self.backbone.channels, len(self.positions))}
        if prompt.mapping == "random":
            chosen = numpy_generator(start, "label mapping").permutation(outputs)[: self.classes]
            return omega | {"outputs": torch.from_numpy(chosen.astype(np.int64))}
        inputs = outputs
        if prompt.mapping == "fc2":
            first = initial_head(outputs, prompt.hidden, start)
            omega |= {"hidden_weight": torch.tensor(first.weight), "hidden_bias": torch.tensor(first.bias)}
            inputs = prompt.hidden
        head = initial_head(inputs, self.classes, start)
        return omega | {"weight": torch.tensor(head.weight), "bias": torch.tensor(head.bias)}

    def place(self, images: Tensor) -> Tensor:
        """Return pad(resize(x)): float images [B, C, canvas, canvas] of uint8 or float images [B, C, H, W]."""
        import torch.nn.functional as F

        from terrine.models.backbone import as_float

        small = F.interpolate(
            as_float(images), size=(self.inner, self.inner), mode="bilinear", align_corners=False, antialias=True
        )
        before = (self.canvas - self.inner) // 2
        after = self.canvas - self.inner - before
        return F.pad(small, (before, after, before, after))

    def pattern(self, border: Tensor) -> Tensor:
        """Return borders [T, C, pixels] on the canvas, [T, C, canvas, canvas], with zeros elsewhere.

        Adding the result of `place` gives x̂: padding is zero, so the sum is equation (1), or without a mask Table 9's
        variant.
        """
        pattern = border.new_zeros((len(border), border.shape[1], self.canvas * self.canvas))
        pattern = pattern.index_copy(2, self.positions.to(border.device), border)
        return pattern.unflatten(2, (self.canvas, self.canvas))

    def scores(self, outputs: Tensor, omega: dict[str, Tensor]) -> Tensor:
        """Map the source's outputs [T, B, O] to scores [T, B, classes] by the mappings of stacked ω."""
        import torch
        import torch.nn.functional as F

        def apply(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            """Return values [T, B, I] times each teacher's weight [T, O, I] plus its bias [T, O]: [T, B, O]."""
            if len(weight) == 1:
                return F.linear(values, weight[0], bias[0])
            return torch.baddbmm(bias[:, None], values, weight.mT)

        if "outputs" in omega:
            return outputs.gather(2, omega["outputs"][:, None].expand(-1, outputs.shape[1], -1))
        if "hidden_weight" in omega:
            outputs = F.relu(apply(outputs, omega["hidden_weight"], omega["hidden_bias"]))
        return apply(outputs, omega["weight"], omega["bias"])

    def train(self, records: Records, teachers: Sequence[int], *, seed: int, device: Device = "cpu") -> TrainedStates:
        """Yield (number, state) of each teacher that has enough records."""
        import torch

        device = torch.device(device)
        records.checked_inputs("images")
        trainable = records.trainable(teachers, self.min_records)
        rows = dict(zip(trainable, teacher_rows(records.assignment, trainable), strict=True))
        self.backbone.to(device)
        size = max(1, self.prompt.together // self.places)
        parts = [list(teachers[first : first + size]) for first in range(0, len(teachers), size)]
        for finished in side_by_side(
            lambda part: self._train_together(records, part, rows, seed, device), parts, device
        ):
            yield from finished

    def _train_together(
        self, records: Records, part: list[int], rows: dict[int, np.ndarray], seed: int, device: torch.device
    ) -> list[tuple[int, Arrays]]:
        """Train those teachers of a group that are in `rows`, in shared passes with places for the whole group."""
        import torch

        from terrine.teachers.network_training import epoch_batches
        from terrine.teachers.stacked_training import StackedAdam

        prompt = self.prompt
        starts = [self.initial(seed, teacher) for teacher in part]
        omega = {name: torch.stack([start[name] for start in starts]).to(device) for name in starts[0]}
        trained = {name: value for name, value in omega.items() if value.is_floating_point()}
        present = [(place, teacher) for place, teacher in enumerate(part) if teacher in rows]
        images = {place: torch.from_numpy(np.ascontiguousarray(records.values[rows[t]])) for place, t in present}
        labels = {place: torch.from_numpy(records.labels[rows[t]].astype(np.int64, copy=False)) for place, t in present}
        generators = {place: torch_generator(seed, "teacher shuffle", teacher) for place, teacher in present}
        shape = (len(part) * self.places, *records.values.shape[1:])
        adam = StackedAdam(list(trained.values()))
        for epoch in range(prompt.epochs):
            batches = {place: epoch_batches(len(own), prompt.batch, generators[place]) for place, own in labels.items()}
            for step in range(max(map(len, batches.values()), default=0)):
                inputs = torch.zeros(shape, dtype=torch.uint8)
                targets = torch.zeros((len(part), self.places), dtype=torch.int64)
                counts = [0] * len(part)
                active = [place for place, own in batches.items() if step < len(own)]
                for place in active:
                    index = batches[place][step]
                    counts[place], first = len(index), place * self.places
                    inputs[first : first + len(index)] = images[place][index]
                    targets[place, : len(index)] = labels[place][index]
                placed = self.place(inputs.to(device))
                with fixed_kernels(device):
                    gradients = self._gradients(omega, trained, placed, targets.to(device), counts)
                adam.step(gradients, active, prompt.learning_rate * prompt.decay**epoch)
        return [
            (teacher, {name: value[place].cpu().numpy() for name, value in omega.items()}) for place, teacher in present
        ]

    def _gradients(
        self,
        omega: dict[str, Tensor],
        trained: dict[str, Tensor],
        placed: Tensor,
        targets: Tensor,
        counts: Sequence[int],
    ) -> list[Tensor]:
        """Return the gradient of every teacher's mean cross-entropy over its own records, stacked like ω."""
        import torch
        import torch.nn.functional as F

        from terrine.models.statistics import batch_statistics, grouped_statistics

        teachers, places = targets.shape
        own = torch.tensor(list(counts), device=placed.device)[:, None]
        present = torch.arange(places, device=placed.device) < own
        weights = present.to(placed.dtype) / own.clamp_min(1)
        leaves = {name: value.detach().requires_grad_() for name, value in trained.items()}
        stacked = omega | leaves
        original = self.settings.statistics == "original"
        statistics = batch_statistics(self.backbone, "original") if original else grouped_statistics(counts, places)
        with torch.enable_grad(), statistics:
            framed = placed.unflatten(0, (teachers, places)) + self.pattern(stacked["border"])[:, None]
            # Selected instead of multiplied by zero, since a network may have no derivative at padding.
            framed = torch.where(present[:, :, None, None, None], framed, 0)
            outputs = self.backbone.network(framed.flatten(0, 1)).unflatten(0, (teachers, places))
            scores = self.scores(torch.where(present[:, :, None], outputs, 0), stacked)
            losses = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
            loss = (losses.view(teachers, places) * weights).sum()
        return list(torch.autograd.grad(loss, list(leaves.values())))

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: Device = "cpu") -> np.ndarray:
        """Return votes [queries, teachers]; `current` statistics are computed per teacher and batch."""
        import torch

        from terrine.models.statistics import batch_statistics

        device = torch.device(device)
        stacked = [self._checked(state, number) for number, state in enumerate(states)]
        votes = np.empty((len(queries.inputs), len(stacked)), vote_type(self.classes))
        self.backbone.to(device)

        def compute(batch: np.ndarray) -> None:
            placed = self.place(torch.from_numpy(np.ascontiguousarray(queries.inputs[batch])).to(device))
            statistics = batch_statistics(self.backbone, self.settings.statistics)
            with torch.no_grad(), statistics, fixed_kernels(device):
                for teacher, state in enumerate(stacked):
                    omega = {name: torch.from_numpy(value)[None].to(device) for name, value in state.items()}
                    outputs = self.backbone.network(placed + self.pattern(omega["border"]))
                    votes[batch, teacher] = self.scores(outputs[None], omega)[0].argmax(dim=1).cpu().numpy()

        parts = list(queries.batches)
        if self.settings.statistics == "original":
            together = self.prompt.together
            parts = [part for own in parts for part in np.array_split(own, -(-len(own) // together))]
        for _ in side_by_side(compute, parts, device):
            pass
        return votes

    def _checked(self, state: Arrays, number: int) -> Arrays:
        expected = {name: tuple(value.shape) for name, value in self.initial(0, 0).items()}
        found = {name: value.shape for name, value in state.items()}
        if found != expected:
            raise ArtefactError(
                f"Prompt teacher {number} has arrays {found} instead of {expected}. The teachers were trained "
                "with other settings or another backbone: run the stage 'teach' again."
            )
        return {name: np.array(value) for name, value in state.items()}
