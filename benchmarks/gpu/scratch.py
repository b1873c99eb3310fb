"""PATE with networks from scratch, its steps and votes as CUDA graphs: 200 teachers in half a minute.

Every teacher is trained by the steps of `terrine.teachers.network_training`, one after the other. They share
tensors, which are reset for each teacher, and one graph for each batch size.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.contrast import captured
from terrine.determinism.randomness import torch_generator
from terrine.device import fixed_kernels, mixed_precision
from terrine.models.backbone import as_float
from terrine.models.statistics import Statistics, batch_statistics, record_statistics
from terrine.teachers.base import start_seed
from terrine.teachers.network_training import Classifier, count_batches, epoch_batches
from terrine.teachers.networks import ScratchKind

State = dict[str, Tensor]


class Trainer:
    """Trains one teacher after the other in the same tensors."""

    def __init__(self, kind: ScratchKind, device: torch.device) -> None:
        self.kind, self.device = kind, device
        self.network = kind.classifier(0).to(device)
        settings = kind.settings
        heavy = [value for value in self.network.parameters() if value.ndim > 1]
        light = [value for value in self.network.parameters() if value.ndim <= 1]
        groups = [{"params": heavy, "weight_decay": settings.weight_decay}, {"params": light}]
        self.graphs = device.type == "cuda"
        self.adam = torch.optim.Adam(groups, lr=settings.learning_rate, fused=True, capturable=self.graphs)
        self.images = torch.zeros(())
        self.labels = torch.zeros(())
        self.steps: dict[int, tuple[Tensor, Callable[[], None]]] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.graphs else None

    def train(self, start: Classifier, images: Tensor, labels: Tensor, generator: torch.Generator) -> State:
        """Return the state of a teacher of these records."""
        settings = self.kind.settings
        if self.images.dim() == 0:
            self.images = images.new_zeros((2_000, *images.shape[1:]))
            self.labels = labels.new_zeros(2_000)
        self.images[: len(images)], self.labels[: len(images)] = images, labels
        shapes = {len(index) for index in epoch_batches(len(images), settings.batch, torch.Generator())}
        for size in shapes - self.steps.keys():
            self.steps[size] = self._step(size)
        with torch.no_grad():
            for own, first in zip(self.network.state_dict().values(), start.state_dict().values(), strict=True):
                own.copy_(first)
            for state in self.adam.state.values():
                for value in state.values():
                    value.zero_()
        for _ in range(settings.epochs):
            for index in epoch_batches(len(images), settings.batch, generator, self.device):
                place, step = self.steps[len(index)]
                place.copy_(index)
                step()
        batches = torch.tensor_split(images, count_batches(len(images), settings.batch))
        record_statistics(self.network, map(as_float, batches), "all")
        return {name: value.clone() for name, value in self.network.state_dict().items() if value.is_floating_point()}

    def _step(self, size: int) -> tuple[Tensor, Callable[[], None]]:
        place = torch.zeros(size, dtype=torch.int64, device=self.device)

        def step() -> None:
            with mixed_precision(self.device):
                loss = F.cross_entropy(self.network(self.images[place]), self.labels[place])
            self.adam.zero_grad(set_to_none=True)
            loss.backward()
            self.adam.step()

        if not self.graphs:
            return place, lambda: _under("current", self.network, step)
        with batch_statistics(self.network, "current"):
            return place, captured(step, self.pool)


def _under(statistics: Statistics, network: Classifier, call: Callable[[], None]) -> None:
    with batch_statistics(network, statistics):
        call()


def train_all(
    kind: ScratchKind,
    images: np.ndarray,
    labels: np.ndarray,
    assignment: np.ndarray,
    *,
    seed: int,
    device: torch.device,
) -> Iterator[State]:
    """Yield the state of each teacher in turn."""
    trainer, initialisation = Trainer(kind, device), kind.settings.initialisation
    teachers = range(int(assignment.max()) + 1)
    everything, known = torch.from_numpy(images).to(device), torch.from_numpy(labels.astype(np.int64)).to(device)
    with ThreadPoolExecutor(1) as ahead, fixed_kernels(device):
        starts = ahead.map(lambda each: kind.classifier(start_seed(seed, each, initialisation)), teachers)
        for teacher, start in zip(teachers, starts, strict=True):
            rows = torch.from_numpy(np.flatnonzero(assignment == teacher)).to(device)
            generator = torch_generator(seed, "teacher shuffle", teacher)
            yield trainer.train(start, everything[rows], known[rows], generator)


@torch.no_grad()
def votes(
    kind: ScratchKind, states: list[State], images: np.ndarray, batch: int, statistics: Statistics, device: torch.device
) -> np.ndarray:
    """Return votes [images, teachers]; images are a multiple of `batch`."""
    frame = kind.classifier(0).to(device)
    asked = torch.from_numpy(images).to(device)
    rows = asked[:batch].clone()
    answers = torch.zeros(batch, dtype=torch.uint8, device=device)

    def ask() -> None:
        answers.copy_(frame(rows).argmax(1))

    with fixed_kernels(device), batch_statistics(frame, statistics):
        call = captured(ask, torch.cuda.graph_pool_handle()) if device.type == "cuda" else ask
        columns = []
        entries = frame.state_dict()
        for state in states:
            for name, value in state.items():
                entries[name].copy_(value)
            column = torch.empty(len(asked), dtype=torch.uint8, device=device)
            for first in range(0, len(asked), batch):
                rows.copy_(asked[first : first + batch])
                call()
                column[first : first + batch] = answers
            columns.append(column)
    return torch.stack(columns, 1).cpu().numpy()
