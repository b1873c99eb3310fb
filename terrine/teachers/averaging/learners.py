"""Models for teachers with averaging: initial weights, and gradients of many copies at once.

A learner is a model whose weights form one vector. The weights of many teachers form a matrix [teachers, length], and
so do their gradients, so averaging, clipping and noise (`terrine.teachers.averaging.ttac`) are vector arithmetic. There
are two learners:

- `LinearLearner`: a head on features of the frozen backbone; gradients of all teachers are two batched products.
- `ModuleLearner`: any torch module, one teacher after the other.
"""

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from terrine.device import fixed_kernels
from terrine.errors import SettingError
from terrine.models.statistics import Statistics, batch_statistics
from terrine.queries import Queries
from terrine.teachers.averaging.ttac import unit_rows
from terrine.teachers.linear import LinearKind
from terrine.teachers.network_training import Classifier, least_records, vote_with_networks
from terrine.teachers.networks import BLOCK
from terrine.teachers.records import Arrays


class Learner(ABC):
    """A model with its weights in one vector.

    Guarantee: a teacher's gradient depends only on its own weights and records.

    Attributes:
        inputs: Kind of training inputs, see `Records`.
        stacked: See `TeacherKind`.
        block: See `TeacherKind`.
        centred: Whether features of records and queries are centred first.
        length: Number of weights P.
        min_records: A party with fewer records than this does not take part.
        by_teacher: See `LinearKind`.
    """

    inputs: Literal["features", "images"]
    stacked: bool
    block: int
    length: int
    min_records: int = 1
    centred: bool = False
    by_teacher: bool = False

    @abstractmethod
    def initial(self) -> Tensor:
        """Return the public initial weights, [P]."""

    @abstractmethod
    def gradients(self, values: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient [teachers, P] of each teacher's mean loss on its batch.

        Args:
            values: Weights [teachers, P].
            inputs: [teachers, batch, ...].
            labels: int64 [teachers, batch].
        """

    @abstractmethod
    def state(self, values: np.ndarray) -> Arrays:
        """Return the weights [P] of one teacher as arrays by name."""

    @abstractmethod
    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str = "cpu") -> np.ndarray:
        """Return votes [queries, teachers]."""


class LinearLearner(Learner):
    """Softmax regression on features of unit length: weights [classes, features] and biases [classes], initially zero.

    weight_decay λ adds λ/2 ‖weights‖² to the mean cross-entropy; arithmetic is in `dtype`.
    """

    inputs: Literal["features", "images"] = "features"
    stacked, block = True, 1024

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.float32,
        by_teacher: bool = False,
        centred: bool = False,
    ) -> None:
        self.features, self.classes, self.weight_decay, self.dtype = features, classes, weight_decay, dtype
        self.by_teacher, self.centred = by_teacher, centred
        self.length = classes * (features + 1)

    def initial(self) -> Tensor:
        return torch.zeros(self.length, dtype=self.dtype)

    def gradients(self, values: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """See `Learner.gradients`; inputs float [teachers, batch, features] are scaled to unit length here."""
        inputs = inputs.to(values.dtype)
        inputs = inputs / inputs.norm(dim=2, keepdim=True).clamp_min(1e-30)
        weight, bias = values.split([self.classes * self.features, self.classes], dim=1)
        weight = weight.reshape(-1, self.classes, self.features)
        error = torch.softmax(torch.bmm(inputs, weight.mT) + bias[:, None], dim=2)
        error = (error - F.one_hot(labels, self.classes).to(error.dtype)) / inputs.shape[1]
        gradient = torch.bmm(error.mT, inputs)
        if self.weight_decay:
            gradient = gradient + self.weight_decay * weight
        return torch.cat([gradient.flatten(1), error.sum(1)], dim=1)

    def state(self, values: np.ndarray) -> Arrays:
        """See `Learner.state`: weight [classes, features] and bias [classes], for features of unit length."""
        weight, bias = np.split(np.asarray(values, np.float32), [self.classes * self.features])
        return {"weight": weight.reshape(self.classes, self.features), "bias": bias}

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str = "cpu") -> np.ndarray:
        """See `Learner.vote`; features of queries are scaled to unit length like those of records."""
        queries = centre_queries(queries) if self.centred else replace(queries, inputs=unit_rows(queries.inputs))
        return LinearKind().vote(states, queries, device=device)


class ModuleLearner(Learner):
    """Module that maps inputs to scores [batch, classes]; the weights are the parameters that require a gradient.

    Attributes:
        names: Names of the weights in the module's `state_dict`, in the order of the vector.

    Args:
        module: Module with the public initial weights; it is not changed.
        weight_decay: Weight decay λ of weight matrices and kernels; biases have none.
        statistics: Statistics of batch normalisation; running averages are never updated.
    """

    inputs: Literal["features", "images"] = "images"
    stacked, block = False, BLOCK

    def __init__(self, module: nn.Module, *, weight_decay: float = 0.0, statistics: Statistics = "current") -> None:
        self.module, self.weight_decay, self.statistics = module, weight_decay, statistics
        self.min_records = least_records(module, statistics)
        parts = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        if not parts:
            raise SettingError("teachers: the network has no weights that could be averaged. Use another architecture.")
        self.names = [name for name, _ in parts]
        self._shapes, self._sizes = [value.shape for _, value in parts], [value.numel() for _, value in parts]
        self.length = sum(self._sizes)
        self._local = threading.local()

    def initial(self) -> Tensor:
        return torch.cat([self.module.get_parameter(name).detach().flatten() for name in self.names])

    def gradients(self, values: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """See `Learner.gradients`; inputs are those of the module with an additional first dimension for teachers."""
        gradients = torch.empty_like(values)
        frame = self._frame().to(values.device)
        with batch_statistics(frame, self.statistics), fixed_kernels(values.device):
            for out, own, batch, targets in zip(gradients, values, inputs, labels, strict=True):
                pieces = [piece.detach().requires_grad_(True) for piece in own.split(self._sizes)]
                found = torch.autograd.grad(self._loss(pieces, batch, targets), pieces)
                torch.cat([piece.flatten() for piece in found], out=out)
        return gradients

    def state(self, values: np.ndarray) -> Arrays:
        pieces = np.split(np.asarray(values, np.float32), np.cumsum(self._sizes)[:-1])
        named = zip(self.names, pieces, self._shapes, strict=True)
        return {name: piece.reshape(shape) for name, piece, shape in named}

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str = "cpu") -> np.ndarray:
        """See `Learner.vote`; the module must be a `Classifier`."""
        return vote_with_networks(states, cast(Classifier, self.module), queries, self.statistics, device=device)

    def _frame(self) -> nn.Module:
        """Return the calling thread's copy of the module, since `functional_call` changes it during the call."""
        if not hasattr(self._local, "frame"):
            self._local.frame = copy.deepcopy(self.module).eval()
        frame: nn.Module = self._local.frame
        return frame

    def _loss(self, pieces: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        named = zip(self.names, pieces, self._shapes, strict=True)
        weights = {name: piece.view(shape) for name, piece, shape in named}
        loss = F.cross_entropy(functional_call(self._frame(), weights, (inputs,)), labels)
        if self.weight_decay:
            squares = [(value * value).sum() for value in weights.values() if value.ndim > 1]
            loss = loss + self.weight_decay / 2 * torch.stack(squares).sum()
        return loss


def centre_queries(queries: Queries) -> Queries:
    """Return the queries with the features of each batch centred by the batch mean."""
    inputs = np.empty(queries.inputs.shape, np.float32)
    for batch in queries.batches:
        own = unit_rows(queries.inputs[batch])
        inputs[batch] = unit_rows(own - own.mean(axis=0, dtype=np.float64))
    return Queries(inputs, queries.batches)
