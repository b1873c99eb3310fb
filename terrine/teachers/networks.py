"""Teachers that are networks: how `scratch` and `finetune` teachers are trained and vote.

A teacher is trained by Adam on the cross-entropy of its own records, shuffled in every epoch by its own generator and
cut into near-equal batches. While it learns, dropout is off and batch normalisation is stateless (see
`terrine.models.statistics`): no running average is kept, and nothing couples two teachers.

Teachers are trained one by one and vote one by one, on every device: on the CPU side by side, each by one thread; on an
accelerator one after the other, on CUDA all of them in mixed precision (bfloat16) while they learn and in float32 when
they vote. They could share a computation (`torch.func.vmap`) only where they have equally many records, and then how
many others have would decide about a teacher's arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine.classifiers import initial_head
from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import torch_generator
from terrine.device import fixed_kernels
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.models.backbone import as_float
from terrine.models.statistics import Statistics, batch_statistics, has_batch_norm
from terrine.teachers.kind import Arrays, Queries, Records, rows_of, vote_type

BLOCK = 16
"""Networks whose votes are kept together."""

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's own, as everywhere


@dataclass(frozen=True)
class NetworkSettings:
    """How a teacher that is a network is trained.

    epochs, learning_rate, batch: of Adam; batch None takes all of a teacher's records in every step.
    weight_decay: λ adds λ/2 ‖w‖² of every weight matrix and kernel to the mean cross-entropy.
    statistics: which batch-norm statistics are used when it votes; see the kinds for what `original` means.
    initialisation: `shared`: all teachers start from the same weights; `own`: each draws its own. Both are public.
    """

    epochs: int = 50
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    batch: int | None = 256
    statistics: Statistics = "current"
    initialisation: Literal["shared", "own"] = "shared"

    def __post_init__(self) -> None:
        if self.epochs < 1 or not self.learning_rate > 0 or self.weight_decay < 0:
            raise SettingError(
                f"teachers: epochs {self.epochs}, learning_rate {self.learning_rate} and weight_decay "
                f"{self.weight_decay} must be at least 1, above 0 and not negative."
            )
        if self.batch is not None and self.batch < 2:
            raise SettingError(
                f"teachers: batch is {self.batch}. Networks need batches of 2 or more, or null for all records."
            )
        if self.statistics not in ("current", "original") or self.initialisation not in ("shared", "own"):
            raise SettingError(
                f"teachers: statistics '{self.statistics}' must be current or original, and initialisation "
                f"'{self.initialisation}' shared or own."
            )


class Classifier(nn.Module):
    """Features of a network and a linear head: uint8 or float images [B, C, H, W] to scores [B, classes]."""

    def __init__(self, network: nn.Module, features: int, classes: int, seed: int) -> None:
        super().__init__()
        start = initial_head(features, classes, seed)
        self.network = network
        self.head = nn.Linear(features, classes, device="meta")
        self.head.weight, self.head.bias = (
            nn.Parameter(torch.tensor(start.weight)),
            nn.Parameter(torch.tensor(start.bias)),
        )
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.network(as_float(images)))


@dataclass(frozen=True)
class Training:
    """What a kind decides about the training of its networks.

    start: teacher -> a fresh classifier with its initial weights; parameters that are not trained require no gradient.
    statistics: of batch normalisation while training.
    finish: called with a trained classifier and its images, uint8 [records, C, H, W]; it may record statistics.
    keep: names of the state's entries in the classifier's `state_dict`.
    """

    start: Callable[[int], Classifier]
    statistics: Statistics
    finish: Callable[[Classifier, Tensor], None]
    keep: Sequence[str]


def train_networks(
    records: Records,
    teachers: Sequence[int],
    training: Training,
    settings: NetworkSettings,
    *,
    seed: int,
    device: torch.device | str,
) -> Iterator[tuple[int, Arrays]]:
    """Yield (number, state) of every teacher, in order; a state holds the arrays named by `training.keep`.

    Raises InputError for images of another type, a teacher without records, or one with a single record and batch
    normalisation.
    """
    device = torch.device(device)
    values = records.values
    if values.dtype != np.uint8 or values.ndim != 4:
        raise InputError(
            f"Teachers that are networks learn from images, uint8 [records, C, H, W], not from "
            f"{values.dtype} {values.shape}. Use linear or estimator teachers for a table."
        )
    rows = dict(zip(teachers, rows_of(records.assignment, teachers), strict=True))

    def load(teacher: int) -> tuple[Tensor, Tensor]:
        index = rows[teacher]
        images = torch.from_numpy(np.ascontiguousarray(values[index]))
        return images.to(device), torch.from_numpy(records.labels[index].astype(np.int64, copy=False)).to(device)

    def prepared(teacher: int) -> tuple[int, Classifier]:
        # In the calling thread: initial weights come from a generator that threads share.
        classifier = training.start(teacher).to(device)
        if len(rows[teacher]) < least_records(classifier, training.statistics):
            raise InputError(
                f"Teacher {teacher} has {len(rows[teacher])} record, and batch normalisation needs two. Use fewer "
                "teachers, or an architecture without batch normalisation (cryptonet)."
            )
        return teacher, classifier

    def train(item: tuple[int, Classifier]) -> tuple[int, Arrays]:
        teacher, classifier = item
        images, labels = load(teacher)
        with fixed_kernels(device):
            generator = torch_generator(seed, "teacher shuffle", teacher)
            _train_one(classifier, images, labels, generator, training.statistics, settings)
            _forget(classifier)
            training.finish(classifier, images)
        state = classifier.state_dict()
        return teacher, {name: state[name].detach().cpu().numpy() for name in training.keep}

    yield from side_by_side(train, map(prepared, teachers), device)


def least_records(network: nn.Module, statistics: Statistics) -> int:
    """Return how many records a network needs to learn: two where it normalises a batch by itself, else one."""
    return 2 if statistics == "current" and has_batch_norm(network) else 1


def epoch_batches(records: int, batch: int | None, generator: torch.Generator) -> list[Tensor]:
    """Return one epoch's shuffled batches: near-equal parts of a permutation of the records, see `parts`."""
    return list(torch.tensor_split(torch.randperm(records, generator=generator), parts(records, batch)))


def parts(records: int, batch: int | None) -> int:
    """Return into how many near-equal batches of at most `batch` records are cut, none with fewer than two.

    Three records with a batch of two are one batch of three: a batch of one has no statistics.
    """
    return max(1, min(-(-records // (batch or records)), records // 2))


def _precision(device: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


def _train_one(
    classifier: Classifier,
    images: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    statistics: Statistics,
    settings: NetworkSettings,
) -> None:
    """Train one classifier in place."""
    names = [name for name, value in classifier.named_parameters() if value.requires_grad]
    parameters = [classifier.get_parameter(name) for name in names]
    adam = _Adam([value.detach() for value in parameters], settings, [value.ndim > 1 for value in parameters])
    with batch_statistics(classifier, statistics):
        for _ in range(settings.epochs):
            for index in epoch_batches(len(images), settings.batch, generator):
                index = index.to(images.device)
                _forget(classifier)
                with _precision(images.device):
                    loss = F.cross_entropy(classifier(images[index]), labels[index])
                adam.step(torch.autograd.grad(loss, parameters))


class _Adam:
    """Adam (Kingma and Ba 2015, algorithm 1) on the tensors of one network, which it changes in place."""

    def __init__(self, values: list[Tensor], settings: NetworkSettings, decays: list[bool]) -> None:
        self.values = values
        self.first = [torch.zeros_like(value) for value in values]
        self.second = [torch.zeros_like(value) for value in values]
        self.rate, self.decay, self.decays, self.count = settings.learning_rate, settings.weight_decay, decays, 0

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        self.count += 1
        rate = self.rate / (1 - _BETA1**self.count)
        correction = 1 / (1 - _BETA2**self.count)
        for value, first, second, gradient, decays in zip(
            self.values, self.first, self.second, gradients, self.decays, strict=True
        ):
            if decays and self.decay:
                gradient = gradient + self.decay * value
            first.mul_(_BETA1).add_(gradient, alpha=1 - _BETA1)
            second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
            value.addcdiv_(first, (second * correction).sqrt_().add_(_EPSILON), value=-rate)


@torch.no_grad()
def vote_with_networks(
    states: Iterable[Arrays],
    frame: Classifier,
    queries: Queries,
    statistics: Statistics,
    classes: int,
    *,
    device: torch.device | str,
) -> np.ndarray:
    """Return every teacher's class for every query: unsigned integers [queries, teachers].

    states: arrays that replace entries of the classifier `frame`, one teacher after the other; they may be read
    lazily. Under `current` statistics each of the fixed batches is normalised by itself. Of equal scores the lower
    class wins. Teachers vote one by one, on the CPU each on its batches side by side. `frame` is left as it was. Raises
    InputError for images of another type or batches that do not cover the queries, ArtefactError for a state that does
    not fit.
    """
    device = torch.device(device)
    images = queries.inputs
    if images.dtype != np.uint8 or images.ndim != 4:
        raise InputError(f"Networks vote on images, uint8 [queries, C, H, W], not on {images.dtype} {images.shape}.")
    covered = np.sort(np.concatenate([np.asarray(batch) for batch in queries.batches]))
    if not np.array_equal(covered, np.arange(len(images))):
        raise InputError(f"The batches do not hold each of {len(images)} queries once.")
    frame = copy.deepcopy(frame).to(device)
    columns: list[np.ndarray] = []
    names: set[str] | None = None
    for state in states:
        if names not in (None, set(state)):
            raise ArtefactError(
                "Teachers hold different arrays, so they were not trained alike: run the stage 'teach' again."
            )
        names = set(state)
        load_state(frame, state)
        votes = np.empty(len(images), vote_type(classes))

        @torch.no_grad()
        def compute(batch: np.ndarray, votes: np.ndarray = votes) -> None:
            inputs = torch.from_numpy(np.ascontiguousarray(images[batch])).to(device)
            with batch_statistics(frame, statistics), fixed_kernels(device):
                votes[batch] = frame(inputs).argmax(dim=1).cpu().numpy()

        for _ in side_by_side(compute, queries.batches, device):
            pass
        columns.append(votes)
    return np.stack(columns, axis=1) if columns else np.empty((len(images), 0), vote_type(classes))


def load_state(classifier: Classifier, state: Arrays) -> None:
    """Replace entries of `classifier` by the arrays of `state`. Raises ArtefactError when they do not fit."""
    entries = classifier.state_dict()
    for name, value in state.items():
        if name not in entries or tuple(entries[name].shape) != value.shape:
            raise ArtefactError(
                f"A teacher's array '{name}' does not fit the network it is to be loaded into. The teachers were "
                "trained with other settings or another backbone: run the stage 'teach' again."
            )
        entries[name].copy_(torch.from_numpy(np.array(value)))
    _forget(classifier)


def _forget(module: nn.Module) -> None:
    """Drop what timm's attention layers computed from their weights and keep in evaluation mode: the weights change."""
    for layer in module.modules():
        if getattr(layer, "attention_bias_cache", None):
            layer.attention_bias_cache = {}
