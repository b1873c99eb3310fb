"""Teachers that are networks: how `scratch` and `finetune` teachers are trained and vote.

A teacher is trained by Adam on the cross-entropy of its own records, shuffled in every epoch by its own generator and
cut into near-equal batches. While it learns, dropout is off and batch normalisation is stateless (see
`terrine.models.statistics`): no running average is kept, and nothing couples two teachers.

One by one, or together? Networks of equal shape whose teachers have equally many records can be trained as one
computation with `torch.func.vmap`. On the CPU they are not: a vmapped convolution there is a grouped convolution,
which was measured to take 1.1 to 2.4 times the CPU time of one teacher after the other at batches of 64 and more
(docs/teachers.md), and one by one gives the same bytes for every grouping. So on the CPU teachers are trained side by
side, each by one thread. On an accelerator, small networks (`SMALL`), whose cost is the launching of small operations,
are trained and vote `TOGETHER` at a time; larger ones one by one, in mixed precision on CUDA.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from terrine.errors import ArtefactError, InputError, SettingError
from terrine.heads import initial_head
from terrine.models.backbone import as_float
from terrine.models.statistics import Statistics, batch_statistics, has_batch_norm
from terrine.parallel import side_by_side
from terrine.randomness import torch_generator
from terrine.teachers.kind import Arrays, Queries, Records, rows_of, vote_type

TOGETHER = 16
"""Most networks that an accelerator trains, or lets vote, in one computation."""
SMALL = 1_000_000
"""Most parameters of a network that shares a computation with others on an accelerator."""

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
    together: int | None = None,
) -> Iterator[tuple[int, Arrays]]:
    """Yield (number, state) of every teacher, in order; a state holds the arrays named by `training.keep`.

    together: networks in one computation; None goes by the rule of the module docstring. Raises InputError for
    images of another type, a teacher without records, or one with a single record and batch normalisation.
    """
    device = torch.device(device)
    if records.inputs.dtype != np.uint8 or records.inputs.ndim != 4:
        raise InputError(
            f"Teachers that are networks learn from images, uint8 [records, C, H, W], not from "
            f"{records.inputs.dtype} {records.inputs.shape}. Use linear or estimator teachers for a table."
        )
    rows = dict(zip(teachers, rows_of(records.assignment, teachers), strict=True))

    def load(teacher: int) -> tuple[Tensor, Tensor]:
        index = rows[teacher]
        images = torch.from_numpy(np.ascontiguousarray(records.inputs[index]))
        return images.to(device), torch.from_numpy(records.labels[index].astype(np.int64, copy=False)).to(device)

    def prepared(part: list[int]) -> tuple[list[int], list[Classifier]]:
        # In the calling thread: initial weights come from a generator that threads share.
        classifiers = [training.start(teacher).to(device) for teacher in part]
        if len(rows[part[0]]) < 2 and training.statistics == "current" and has_batch_norm(classifiers[0]):
            raise InputError(
                f"Teacher {part[0]} has {len(rows[part[0]])} record, and batch normalisation needs two. Use fewer "
                "teachers, or an architecture without batch normalisation (cryptonet)."
            )
        return part, classifiers

    def train(item: tuple[list[int], list[Classifier]]) -> list[tuple[int, Arrays]]:
        part, classifiers = item
        data = [load(teacher) for teacher in part]
        generators = [torch_generator(seed, "teacher shuffle", teacher) for teacher in part]
        if len(part) == 1:
            _train_one(classifiers[0], *data[0], generators[0], training.statistics, settings)
        else:
            _train_together(classifiers, data, generators, training.statistics, settings)
        finished = []
        for teacher, classifier, (images, _) in zip(part, classifiers, data, strict=True):
            _forget(classifier)
            training.finish(classifier, images)
            state = classifier.state_dict()
            finished.append((teacher, {name: state[name].detach().cpu().numpy() for name in training.keep}))
        return finished

    if not teachers:
        return
    together = together or _together(training.start(teachers[0]), device)
    groups = map(prepared, _alike(list(teachers), rows, together))
    for finished in side_by_side(train, groups, device):
        yield from finished


def _alike(teachers: list[int], rows: dict[int, np.ndarray], together: int) -> Iterator[list[int]]:
    """Yield runs of consecutive teachers with equally many records, at most `together` in one."""
    for _, same in itertools.groupby(teachers, key=lambda teacher: len(rows[teacher])):
        yield from (list(part) for part in _batched(same, together))


def _batched(items: Iterable[int], size: int) -> Iterator[list[int]]:
    iterator = iter(items)
    while part := list(itertools.islice(iterator, size)):
        yield part


def epoch_batches(records: int, batch: int | None, generator: torch.Generator) -> list[Tensor]:
    """Return one epoch's shuffled batches: near-equal parts of a permutation of the records, see `parts`."""
    return list(torch.tensor_split(torch.randperm(records, generator=generator), parts(records, batch)))


def parts(records: int, batch: int | None) -> int:
    """Return into how many near-equal batches of at most `batch` records are cut, none with fewer than two.

    Three records with a batch of two are one batch of three: a batch of one has no statistics.
    """
    return max(1, min(-(-records // (batch or records)), records // 2))


def _together(network: nn.Module, device: torch.device) -> int:
    small = sum(value.numel() for value in network.parameters()) <= SMALL
    return TOGETHER if small and device.type != "cpu" else 1


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


def _train_together(
    classifiers: list[Classifier],
    data: list[tuple[Tensor, Tensor]],
    generators: list[torch.Generator],
    statistics: Statistics,
    settings: NetworkSettings,
) -> None:
    """Train classifiers of one shape, on equally many records each, as one computation, in place."""
    frame = classifiers[0]
    trained = {name for name, value in frame.named_parameters() if value.requires_grad}
    stacked, buffers = stack_module_state(classifiers)
    parameters = {name: value.detach() for name, value in stacked.items() if name in trained}
    fixed = {name: value.detach() for name, value in stacked.items() if name not in trained} | buffers
    images, labels = (torch.stack(parts) for parts in zip(*data, strict=True))
    device = images.device
    own = torch.arange(len(classifiers), device=device)[:, None]

    def loss(parameters: dict[str, Tensor], fixed: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(frame, (parameters, fixed), (images,)), labels)

    gradients = vmap(grad(loss))
    adam = _Adam(list(parameters.values()), settings, [value.ndim > 2 for value in parameters.values()])
    with batch_statistics(frame, statistics):
        for _ in range(settings.epochs):
            each = [epoch_batches(images.shape[1], settings.batch, generator) for generator in generators]
            for batch in zip(*each, strict=True):
                index = torch.stack(batch).to(device)
                found = gradients(parameters, fixed, images[own, index], labels[own, index])
                adam.step([found[name] for name in parameters])
    with torch.no_grad():
        for number, classifier in enumerate(classifiers):
            for name, value in parameters.items():
                classifier.get_parameter(name).copy_(value[number])


class _Adam:
    """Adam (Kingma and Ba 2015, algorithm 1) on tensors that it changes in place; one network's, or many stacked."""

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
    together: int | None = None,
) -> np.ndarray:
    """Return every teacher's class for every query: unsigned integers [queries, teachers].

    states: arrays that replace entries of the classifier `frame`, one teacher after the other; they may be read
    lazily. Under `current` statistics each of the fixed batches is normalised by itself. Of equal scores the lower
    class wins. Teachers vote `together` at a time, None going by the rule of the module docstring; on the CPU one
    by one, and batches side by side. `frame` is left as it was. Raises InputError for images of another type or batches
    that do not cover the queries, ArtefactError for a state that does not fit.
    """
    device = torch.device(device)
    images = queries.inputs
    if images.dtype != np.uint8 or images.ndim != 4:
        raise InputError(f"Networks vote on images, uint8 [queries, C, H, W], not on {images.dtype} {images.shape}.")
    covered = np.sort(np.concatenate([np.asarray(batch) for batch in queries.batches]))
    if not np.array_equal(covered, np.arange(len(images))):
        raise InputError(f"The batches do not hold each of {len(images)} queries once.")
    together = together or _together(frame, device)
    frame = copy.deepcopy(frame).to(device)
    columns: list[np.ndarray] = []
    iterator = iter(states)
    while part := list(itertools.islice(iterator, together)):
        votes = np.empty((len(images), len(part)), vote_type(classes))
        decide = _decider(frame, part, statistics, device)

        def compute(batch: np.ndarray, votes: np.ndarray = votes, decide: Any = decide) -> None:
            inputs = torch.from_numpy(np.ascontiguousarray(images[batch])).to(device)
            votes[batch] = decide(inputs).cpu().numpy()

        # `functional_call`, which lets several vote as one, swaps the frame's weights: one batch after the other then.
        batches = side_by_side(compute, queries.batches, device) if len(part) == 1 else map(compute, queries.batches)
        for _ in batches:
            pass
        columns.append(votes)
    return np.concatenate(columns, axis=1) if columns else np.empty((len(images), 0), vote_type(classes))


def _decider(
    frame: Classifier, part: list[Arrays], statistics: Statistics, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """Return a function from images [B, C, H, W] to classes [B, len(part)]."""
    if len(part) == 1:
        load_state(frame, part[0])

        def alone(images: Tensor) -> Tensor:
            with torch.no_grad(), batch_statistics(frame, statistics):
                return frame(images).argmax(dim=1, keepdim=True)

        return alone
    entries = frame.state_dict()
    stacked = {
        name: torch.from_numpy(np.stack([state[name] for state in part])).to(device) for name in _checked(frame, part)
    }
    fixed = {name: value for name, value in entries.items() if name not in stacked}

    def scores(own: dict[str, Tensor], images: Tensor) -> Tensor:
        return functional_call(frame, own | fixed, (images,))

    def several(images: Tensor) -> Tensor:
        with torch.no_grad(), batch_statistics(frame, statistics):
            return vmap(scores, in_dims=(0, None))(stacked, images).argmax(dim=2).T

    return several


def load_state(classifier: Classifier, state: Arrays) -> None:
    """Replace entries of `classifier` by the arrays of `state`. Raises ArtefactError when they do not fit."""
    entries = classifier.state_dict()
    for name in _checked(classifier, [state]):
        entries[name].copy_(torch.from_numpy(np.array(state[name])))
    _forget(classifier)


def _forget(module: nn.Module) -> None:
    """Drop what timm's attention layers computed from their weights and keep in evaluation mode: the weights change."""
    for layer in module.modules():
        if getattr(layer, "attention_bias_cache", None):
            layer.attention_bias_cache = {}


def _checked(classifier: Classifier, states: list[Arrays]) -> list[str]:
    entries = classifier.state_dict()
    for state in states:
        for name in state.keys() | states[0].keys():
            if name not in state or name not in entries or tuple(entries[name].shape) != state[name].shape:
                raise ArtefactError(
                    f"A teacher's array '{name}' does not fit the network it is to be loaded into. The teachers were "
                    "trained with other settings or another backbone: run the stage 'teach' again."
                )
    return list(states[0])
