"""Classifier heads, from a feature vector to one score per class: linear, or a forest.

A softmax turns scores of classes into probabilities; for findings, a sigmoid is applied to each score (`FindingsHead`).
For ordered classes a head may score the boundaries between them (`OrderedHead`). A head is stored as named arrays:

    >>> head = head_from_arrays(arrays)             # the names determine the kind
    >>> probabilities = predict(head, features)     # NumPy arrays, on the CPU
    >>> network = nn.Sequential(backbone, head.module())  # for training, export or an accelerator
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import torch_generator
from terrine.errors import InputError

_PREDICTION_BLOCK = 4096
_LEAST = 1e-7


@dataclass(frozen=True)
class LinearHead:
    """Scores `weight` x + `bias` of a feature vector x; float32 weight [classes, features], bias [classes]."""

    findings: ClassVar[bool] = False
    """True if scores belong to independent findings."""
    prefix: ClassVar[str] = ""
    """Prefix of the names of stored arrays."""

    weight: np.ndarray
    bias: np.ndarray

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[:1]:
            raise InputError(
                f"A linear head needs a weight [classes, features] and a bias [classes], got shapes "
                f"{self.weight.shape} and {self.bias.shape}."
            )

    @property
    def features(self) -> int:
        """Number of input features."""
        return self.weight.shape[1]

    @property
    def classes(self) -> int:
        """Number of scores."""
        return self.weight.shape[0]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by their names in a safetensors file."""
        return {f"{self.prefix}weight": self.weight, f"{self.prefix}bias": self.bias}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Return the head of `to_arrays`. Raise InputError if an array is missing or has another shape."""
        names = [f"{cls.prefix}weight", f"{cls.prefix}bias"]
        if not set(names) <= arrays.keys():
            raise InputError(
                f"{cls.__name__} needs the arrays {', '.join(names)}, but there are {', '.join(sorted(arrays))}."
            )
        return cls(*(np.asarray(arrays[name], np.float32) for name in names))

    def module(self) -> nn.Module:
        """Return a torch module with copies of the weights, from features [B, features] to scores [B, classes]."""
        return _linear(self.weight, self.bias)


class FindingsHead(LinearHead):
    """A linear head for findings, with independent probabilities 1 / (1 + e^−score)."""

    findings = True
    prefix = "findings."


class OrderedHead(LinearHead):
    """A linear head with K − 1 scores of the boundaries between K ordered classes (McCullagh 1980).

    1 / (1 + e^−score) is the probability of a class above the boundary. These are sorted in decreasing order
    (Chernozhukov et al. 2010); their differences are the class probabilities, whose logarithms the module returns.
    """

    prefix = "ordered."

    @property
    def classes(self) -> int:
        return self.weight.shape[0] + 1

    def module(self) -> nn.Module:
        return nn.Sequential(_linear(self.weight, self.bias), _Ordered())


class _Ordered(nn.Module):
    """Module that maps scores of boundaries [B, K − 1] to logarithms of class probabilities [B, K]."""

    def forward(self, scores: Tensor) -> Tensor:
        above = torch.sigmoid(scores.sort(dim=1, descending=True).values)
        ends = torch.ones_like(above[:, :1])
        return (torch.cat([ends, above], 1) - torch.cat([above, 0 * ends], 1)).clamp(min=_LEAST).log()


_LEAST_SHARE = 1e-4
"""Minimum to which a class's share in a leaf is raised: noise may make it smaller or negative."""

_DTYPES = {
    "root": np.int32,
    "feature": np.int32,
    "threshold": np.float32,
    "left": np.int32,
    "right": np.int32,
    "shares": np.float32,
    "importance": np.float32,
}


@dataclass(frozen=True)
class ForestHead:
    """Regression trees as arrays, with the nodes of all trees one after another.

    A feature vector goes from the root to a leaf: left if the node's feature is at most the threshold. Scores are the
    logarithms of the class shares, averaged over the leaves that it reaches.

    Attributes:
        root: int32 [trees], root of each tree.
        feature: int32 [nodes], feature of each node; 0 at a leaf.
        threshold: float32 [nodes]; infinite at a leaf.
        left: int32 [nodes], next node; a leaf follows itself. Likewise right.
        shares: float32 [nodes, classes], shares of votes.
        importance: float32 [features], contributions to the fit, which sum to 1 (or 0 without branches).
    """

    findings: ClassVar[bool] = False

    root: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    shares: np.ndarray
    importance: np.ndarray

    def __post_init__(self) -> None:
        nodes = len(self.shares)
        of_nodes = (self.feature, self.threshold, self.left, self.right)
        fits = self.shares.ndim == 2 and all(part.shape == (nodes,) for part in of_nodes) and self.root.ndim == 1
        inside = fits and all(
            len(part) and part.min() >= 0 and part.max() < most
            for part, most in (
                (self.root, nodes),
                (self.left, nodes),
                (self.right, nodes),
                (self.feature, len(self.importance)),
            )
        )
        leaf = (self.left == np.arange(nodes)) & (self.right == np.arange(nodes)) if inside else np.empty(0, bool)
        # Nodes precede those that follow them, so paths are finite.
        if not inside or not (leaf | ((self.left > np.arange(nodes)) & (self.right > np.arange(nodes)))).all():
            raise InputError("These arrays are not a forest: a node refers to an invalid feature or node.")

    @property
    def features(self) -> int:
        """Number of input features."""
        return len(self.importance)

    @property
    def classes(self) -> int:
        """Number of scores."""
        return self.shares.shape[1]

    @property
    def depth(self) -> int:
        """Number of steps from a root to the farthest leaf."""
        nodes, steps = self.root, 0
        while (follow := np.concatenate([self.left[nodes], self.right[nodes]])).size and not (
            np.array_equal(self.left[nodes], nodes) and np.array_equal(self.right[nodes], nodes)
        ):
            nodes, steps = np.unique(follow), steps + 1
        return steps

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by their names in a safetensors file."""
        return {f"forest.{name}": getattr(self, name) for name in _DTYPES}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Return the head of `to_arrays`. Raise InputError if an array is missing or has another shape."""
        missing = [name for name in _DTYPES if f"forest.{name}" not in arrays]
        if missing:
            raise InputError(f"A forest needs the array forest.{missing[0]}.")
        return cls(*(np.asarray(arrays[f"forest.{name}"], dtype) for name, dtype in _DTYPES.items()))

    def module(self) -> nn.Module:
        """Return a torch module without trainable weights, from features [B, features] to scores [B, classes]."""
        return _Forest(self)


class _Forest(nn.Module):
    root: Tensor
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    shares: Tensor

    def __init__(self, head: ForestHead) -> None:
        super().__init__()
        self.depth = head.depth
        for name in ("root", "feature", "left", "right"):
            self.register_buffer(name, torch.tensor(getattr(head, name), dtype=torch.int64))
        for name in ("threshold", "shares"):
            self.register_buffer(name, torch.tensor(getattr(head, name)))

    def forward(self, features: Tensor) -> Tensor:
        node = self.root.expand(features.shape[0], -1)  # len() would fix the batch of an export
        for _ in range(self.depth):
            at_most = features.gather(1, self.feature[node]) <= self.threshold[node]
            node = torch.where(at_most, self.left[node], self.right[node])
        return self.shares[node].mean(1).clamp(min=_LEAST_SHARE).log()


Head: TypeAlias = LinearHead | ForestHead


def _linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = nn.Parameter(torch.tensor(weight)), nn.Parameter(torch.tensor(bias))
    return layer


def head_from_arrays(arrays: Mapping[str, Any]) -> Head:
    """Return the head, of any kind, from the output of its `to_arrays`.

    Raises:
        InputError: an array is missing, unknown or has another shape.
    """
    kinds: dict[str, type[Head]] = {
        "forest": ForestHead,
        "findings": FindingsHead,
        "ordered": OrderedHead,
    }
    found = {name.partition(".")[0] for name in arrays} & kinds.keys()
    head = kinds[min(found)].from_arrays(arrays) if found else LinearHead.from_arrays(arrays)
    unknown = sorted(set(arrays) - set(head.to_arrays()))
    if unknown:
        raise InputError(f"Unknown array '{unknown[0]}'. The file is not a head, or was written by a later version.")
    return head


def head_from_module(module: nn.Module) -> LinearHead:
    """Return the head from the output of its `module`, with the current weights."""
    (layer,) = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    weight, bias = (value.detach().cpu().float().numpy().copy() for value in (layer.weight, layer.bias))
    return LinearHead(weight, bias)


def probabilities(scores: Tensor, findings: bool) -> Tensor:
    """Convert scores [B, classes] to probabilities: by a softmax, or by sigmoids for findings."""
    return torch.sigmoid(scores) if findings else torch.softmax(scores, dim=1)


def predict(head: Head, features: np.ndarray) -> np.ndarray:
    """Return class probabilities, float32 [queries, classes], for features [queries, features].

    Probabilities are computed on the CPU in fixed blocks with one thread each, so the number of cores does not change
    them.

    Raises:
        InputError: the number of features differs.
    """
    if features.ndim != 2 or features.shape[1] != head.features:
        raise InputError(f"The features have shape {features.shape}, but the head needs {head.features} features.")
    module = head.module()

    @torch.no_grad()
    def compute(first: int) -> np.ndarray:
        block = torch.tensor(features[first : first + _PREDICTION_BLOCK], dtype=torch.float32)
        return probabilities(module(block), head.findings).numpy()

    blocks = list(side_by_side(compute, range(0, len(features), _PREDICTION_BLOCK)))
    return np.concatenate(blocks) if blocks else np.empty((0, head.classes), np.float32)


def initial_head(features: int, classes: int, seed: int) -> LinearHead:
    """Return the initial head of all teachers: weights uniform within ±1/√features, bias zero.

    Source: Anonymous 2025, section 4. A common start increases agreement. The common start is public and costs no
        privacy.
    """
    bound = 1 / math.sqrt(features)
    weight = torch.empty(classes, features).uniform_(
        -bound, bound, generator=torch_generator(seed, "initial head", features, classes)
    )
    return LinearHead(weight.numpy(), np.zeros(classes, np.float32))
