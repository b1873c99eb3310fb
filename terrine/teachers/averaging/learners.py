"""What teachers with averaging need of a model: a start, and the gradients of many copies of it at once.

A learner is a model whose weights are one vector. The weights of many teachers are a matrix [teachers, length], and so
are their gradients, so that averaging, clipping and noise (`terrine.teachers.averaging.ttac`) are arithmetic on vectors
and know no model. There are two:

- `LinearLearner`: a head on features of the frozen backbone; gradients of all teachers are two batched products.
- `ModuleLearner`: any torch module, one teacher after the other.
"""

import copy
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, Protocol, cast

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


class Learner(Protocol):
    """A model with its weights in one vector.

    inputs: what it learns from, see `Records`. stacked, block: see `TeacherKind`. centred: whether features of records
    and queries are centred first. length: number of weights P. least: records without which a party does
    not take part. by_teacher: see `LinearKind`. Guarantee: the gradient of one teacher depends only on its own weights
    and records.
    """

    inputs: Literal["features", "images"]
    stacked: bool
    block: int
    centred: bool
    length: int
    least: int
    by_teacher: bool

    def initial(self) -> Tensor:
        """Return the public start, [P]."""
        ...

    def gradients(self, values: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient [teachers, P] of each teacher's mean loss on its batch.

        values [teachers, P]; inputs [teachers, batch, ...]; labels int64 [teachers, batch].
        """
        ...

    def state(self, values: np.ndarray) -> Arrays:
        """Return the weights [P] of one teacher as arrays by name."""
        ...

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str) -> np.ndarray:
        """Return votes [queries, teachers]."""
        ...


class LinearLearner:
    """Softmax regression on features of unit length: weights [classes, features] and biases [classes], all from zero.

    weight_decay λ adds λ/2 ‖weights‖² to the mean cross-entropy. dtype: of the arithmetic.
    """

    inputs: Literal["features", "images"] = "features"
    stacked, block, least = True, 1024, 1

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
        """See `Learner.initial`."""
        return torch.zeros(self.length, dtype=self.dtype)

    def gradients(self, values: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """See `Learner.gradients`; inputs float [teachers, batch, features], brought to unit length here."""
        inputs = inputs.to(values.dtype)
        inputs = inputs / inputs.norm(dim=2, keepdim=True).clamp_min(1e-30)
        weight, bias = self._split(values)
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
        """See `Learner.vote`; each query's features are brought to unit length, as the records' were."""
        queries = centre_queries(queries) if self.centred else replace(queries, inputs=unit_rows(queries.inputs))
        return LinearKind().vote(states, queries, device=device)

    def _split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = values.split([self.classes * self.features, self.classes], dim=1)
        return weight.reshape(-1, self.classes, self.features), bias


class ModuleLearner:
    """Any module from inputs to scores [batch, classes]; its parameters that require a gradient are the weights.

    module: with the public start in it; it is not changed. weight_decay: on weight matrices and kernels, not on biases.
    statistics: of batch normalisation while it learns; running averages are never touched.
    """

    inputs: Literal["features", "images"] = "images"
    stacked, block, centred, by_teacher = False, BLOCK, False, False

    def __init__(self, module: nn.Module, *, weight_decay: float = 0.0, statistics: Statistics = "current") -> None:
        self.module, self.weight_decay, self.statistics = module, weight_decay, statistics
        self.least = least_records(module, statistics)
        self.parts = [
            (name, value.shape, value.numel()) for name, value in module.named_parameters() if value.requires_grad
        ]
        if not self.parts:
            raise SettingError("teachers: the network has no weights that could be averaged. Use another architecture.")
        self.length = sum(size for _, _, size in self.parts)
        self._own = threading.local()

    @property
    def names(self) -> Sequence[str]:
        """Names of the weights in the module's state, in the order of the vector."""
        return [name for name, _, _ in self.parts]

    def initial(self) -> Tensor:
        """See `Learner.initial`."""
        return torch.cat([self.module.get_parameter(name).detach().flatten() for name in self.names])

    def gradients(self, values: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """See `Learner.gradients`; inputs as the module takes them, with a dimension for the teachers before."""
        gradients = torch.empty_like(values)
        frame = self._frame().to(values.device)  # what is not learned stays in it
        with batch_statistics(frame, self.statistics), fixed_kernels(values.device):
            for into, *part in zip(gradients, values, inputs, labels, strict=True):
                self._gradient(into, *part)
        return gradients

    def state(self, values: np.ndarray) -> Arrays:
        """See `Learner.state`: the weights by their names in the module's state."""
        ends = np.cumsum([size for _, _, size in self.parts])[:-1]
        pieces = np.split(np.asarray(values, np.float32), ends)
        return {name: piece.reshape(shape) for (name, shape, _), piece in zip(self.parts, pieces, strict=True)}

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str = "cpu") -> np.ndarray:
        """See `Learner.vote`; the module is a `Classifier`."""
        return vote_with_networks(states, cast(Classifier, self.module), queries, self.statistics, device=device)

    def _frame(self) -> nn.Module:
        """Return the calling thread's own copy: `functional_call` changes a module for the time of the call."""
        if not hasattr(self._own, "frame"):
            self._own.frame = copy.deepcopy(self.module).eval()
        frame: nn.Module = self._own.frame
        return frame

    def _gradient(self, into: Tensor, values: Tensor, inputs: Tensor, labels: Tensor) -> None:
        sizes = [size for _, _, size in self.parts]
        pieces = [piece.detach().requires_grad_(True) for piece in values.split(sizes)]
        found = torch.autograd.grad(self._loss(pieces, inputs, labels), pieces)
        torch.cat([piece.flatten() for piece in found], out=into)

    def _loss(self, pieces: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        weights = {name: piece.view(shape) for (name, shape, _), piece in zip(self.parts, pieces, strict=True)}
        loss = F.cross_entropy(functional_call(self._frame(), weights, (inputs,)), labels)
        if self.weight_decay:
            squares = [(value * value).sum() for value in weights.values() if value.ndim > 1]
            loss = loss + self.weight_decay / 2 * torch.stack(squares).sum()
        return loss


def centre_queries(queries: Queries) -> Queries:
    """Return the queries with the features of each batch centred by its own mean."""
    inputs = np.empty(queries.inputs.shape, np.float32)
    for batch in queries.batches:
        own = unit_rows(queries.inputs[batch])
        inputs[batch] = unit_rows(own - own.mean(axis=0, dtype=np.float64))
    return Queries(inputs, queries.batches)
