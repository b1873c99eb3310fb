"""Heads: what turns a feature vector into one score per class; linear, with one hidden layer, or a forest.

Of classes one is true, and scores become probabilities by a softmax. Of findings each may be true (`FindingsHead`), and
each score becomes one by itself. Of classes in an order a head may tell what lies above each boundary (`OrderedHead`).

A head is arrays with names, so it is stored without code, and every use of a stored head goes through what is here:

    >>> head = head_from_arrays(arrays)             # of the kind that the arrays' names tell
    >>> probabilities = predict(head, features)     # NumPy in, NumPy out, on the CPU
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


class _Head:
    """What all heads share: arrays by name, a file's `hidden.weight` being the field `hidden_weight`."""

    weight: np.ndarray
    bias: np.ndarray

    __dataclass_fields__: ClassVar[dict[str, Any]]

    findings: ClassVar[bool] = False
    """Whether each score is of a finding that may be there or not, whatever the others are."""

    @property
    def features(self) -> int:
        """Number of features it takes."""
        return next(iter(self.to_arrays().values())).shape[1]

    @property
    def classes(self) -> int:
        """Number of scores it gives."""
        return self.weight.shape[0]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, as a safetensors file holds them."""
        return {self._stored(name): getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Return the head that `to_arrays` described. Raises InputError when an array is missing or misshapen."""
        names = [cls._stored(name) for name in cls.__dataclass_fields__]
        if not set(names) <= arrays.keys():
            raise InputError(
                f"Such a head needs the arrays {', '.join(names)}; there are: {', '.join(sorted(arrays))}."
            )
        return cls(*(np.asarray(arrays[name], np.float32) for name in names))

    @classmethod
    def _stored(cls, name: str) -> str:
        return name.replace("hidden_", "hidden.")


@dataclass(frozen=True)
class LinearHead(_Head):
    """Scores of a feature vector x are `weight` x + `bias`; float32 weight [classes, features], bias [classes]."""

    weight: np.ndarray
    bias: np.ndarray

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[:1]:
            raise InputError(
                f"A linear head takes a weight [classes, features] and a bias [classes], not arrays of shapes "
                f"{self.weight.shape} and {self.bias.shape}."
            )

    def module(self) -> nn.Module:
        """Return a torch module with copies of the weights: features [B, features] to scores [B, classes]."""
        return _linear(self.weight, self.bias)


class FindingsHead(LinearHead):
    """A linear head whose scores are of findings: each says by itself how likely it is, 1 / (1 + e^−score)."""

    findings = True

    @classmethod
    def _stored(cls, name: str) -> str:
        return f"findings.{name}"


class OrderedHead(LinearHead):
    """A linear head whose K − 1 scores are of the boundaries between K classes in an order (McCullagh 1980).

    1 / (1 + e^−score) is how likely a class above the boundary is; in their falling order (Chernozhukov et al. 2010)
    these differ by how likely each class is. The module gives the logarithms of that, whose softmax is the same again.
    """

    @property
    def classes(self) -> int:
        return self.weight.shape[0] + 1

    @classmethod
    def _stored(cls, name: str) -> str:
        return f"ordered.{name}"

    def module(self) -> nn.Module:
        """Return a torch module with copies of the weights: features [B, features] to scores [B, classes]."""
        return nn.Sequential(_linear(self.weight, self.bias), _Ordered())


class _Ordered(nn.Module):
    """Scores of boundaries [B, K − 1] to logarithms of the probabilities of classes [B, K]."""

    def forward(self, scores: Tensor) -> Tensor:
        above = torch.sigmoid(scores.sort(dim=1, descending=True).values)
        ends = torch.ones_like(above[:, :1])
        return (torch.cat([ends, above], 1) - torch.cat([above, 0 * ends], 1)).clamp(min=_LEAST).log()


@dataclass(frozen=True)
class MLPHead(_Head):
    """Scores are `weight` max(0, `hidden_weight` x + `hidden_bias`) + `bias`, all float32.

    hidden_weight [hidden, features], hidden_bias [hidden], weight [classes, hidden], bias [classes].
    """

    hidden_weight: np.ndarray
    hidden_bias: np.ndarray
    weight: np.ndarray
    bias: np.ndarray

    def __post_init__(self) -> None:
        shapes = [array.shape for array in self.to_arrays().values()]
        fits = self.hidden_weight.ndim == 2 and self.weight.ndim == 2
        if not fits or shapes[1:] != [shapes[0][:1], (shapes[2][0], shapes[0][0]), shapes[2][:1]]:
            raise InputError(
                "A head with a hidden layer takes arrays [hidden, features], [hidden], [classes, hidden] and "
                f"[classes], not arrays of shapes {', '.join(map(str, shapes))}."
            )

    def module(self) -> nn.Module:
        """Return a torch module with copies of the weights: features [B, features] to scores [B, classes]."""
        return nn.Sequential(_linear(self.hidden_weight, self.hidden_bias), nn.ReLU(), _linear(self.weight, self.bias))


_LEAST_SHARE = 1e-4
"""A share below this, or below 0 for the noise in it, counts as this: no class is impossible."""

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
    """A forest: regression trees as plain arrays, the nodes of all trees one after another.

    Every tree sends a feature vector from its root to a leaf, left if the node's feature is at most its threshold; a
    leaf contains shares of votes. Scores are the logarithms of the mean shares, so that their softmax are these shares.

    root        int32 [trees], the node that a tree begins with
    feature     int32 [nodes], which feature a node looks at; 0 at a leaf
    threshold   float32 [nodes]; infinite at a leaf
    left, right int32 [nodes], the node that follows; a leaf follows itself
    shares      float32 [nodes, classes], shares of votes
    importance  float32 [features], what a feature adds to the fit, summing to 1 (or 0 where no tree branches)
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
        # Nodes come before those that follow them, so no path is a circle.
        if not inside or not (leaf | ((self.left > np.arange(nodes)) & (self.right > np.arange(nodes)))).all():
            raise InputError("These arrays are no forest: a node looks at a feature, or leads to a node, that is none.")

    @property
    def features(self) -> int:
        """Number of features it takes."""
        return len(self.importance)

    @property
    def classes(self) -> int:
        """Number of scores it gives."""
        return self.shares.shape[1]

    @property
    def depth(self) -> int:
        """Steps from a root to the farthest leaf."""
        nodes, steps = self.root, 0
        while (follow := np.concatenate([self.left[nodes], self.right[nodes]])).size and not (
            np.array_equal(self.left[nodes], nodes) and np.array_equal(self.right[nodes], nodes)
        ):
            nodes, steps = np.unique(follow), steps + 1
        return steps

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, as a safetensors file holds them."""
        return {f"forest.{name}": getattr(self, name) for name in _DTYPES}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Return the head that `to_arrays` described. Raises InputError when an array is missing or misshapen."""
        missing = [name for name in _DTYPES if f"forest.{name}" not in arrays]
        if missing:
            raise InputError(f"A forest needs the array forest.{missing[0]}.")
        return cls(*(np.asarray(arrays[f"forest.{name}"], dtype) for name, dtype in _DTYPES.items()))

    def module(self) -> nn.Module:
        """Return a torch module without weights to train: features [B, features] to scores [B, classes]."""
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


Head: TypeAlias = LinearHead | MLPHead | ForestHead


def _linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = nn.Parameter(torch.tensor(weight)), nn.Parameter(torch.tensor(bias))
    return layer


def head_from_arrays(arrays: Mapping[str, Any]) -> Head:
    """Return the head, of whatever kind, whose `to_arrays` gave `arrays`.

    Raises InputError when an array is missing, misshapen or unknown.
    """
    kinds: dict[str, type[Head]] = {
        "hidden": MLPHead,
        "forest": ForestHead,
        "findings": FindingsHead,
        "ordered": OrderedHead,
    }
    found = {name.partition(".")[0] for name in arrays} & kinds.keys()
    head = kinds[min(found)].from_arrays(arrays) if found else LinearHead.from_arrays(arrays)
    unknown = sorted(set(arrays) - set(head.to_arrays()))
    if unknown:
        raise InputError(f"A head has no array '{unknown[0]}'. The file is not a head, or of a later version.")
    return head


def head_from_module(module: nn.Module) -> Head:
    """Return the head whose `module` this is, with the weights it has by now."""

    def arrays(layer: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
        return layer.weight.detach().cpu().float().numpy().copy(), layer.bias.detach().cpu().float().numpy().copy()

    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return LinearHead(*arrays(layers[0])) if len(layers) == 1 else MLPHead(*arrays(layers[0]), *arrays(layers[1]))


def probabilities(scores: Tensor, findings: bool) -> Tensor:
    """Return what scores [B, classes] say: how likely each class is, or each of the findings by itself."""
    return torch.sigmoid(scores) if findings else torch.softmax(scores, dim=1)


def predict(head: Head, features: np.ndarray) -> np.ndarray:
    """Return class probabilities, float32 [queries, classes], of features [queries, features].

    Computed on the CPU in fixed blocks, each by one thread: the same bytes on any number of cores. Raises InputError
    when the features do not fit the head.
    """
    if features.ndim != 2 or features.shape[1] != head.features:
        raise InputError(f"features of shape {features.shape} do not fit a head on {head.features} features.")
    module = head.module()

    @torch.no_grad()
    def compute(first: int) -> np.ndarray:
        block = torch.tensor(features[first : first + _PREDICTION_BLOCK], dtype=torch.float32)
        return probabilities(module(block), head.findings).numpy()

    blocks = list(side_by_side(compute, range(0, len(features), _PREDICTION_BLOCK)))
    return np.concatenate(blocks) if blocks else np.empty((0, head.classes), np.float32)


def initial_head(features: int, classes: int, seed: int) -> LinearHead:
    """Return the random head that all teachers of `seed` start from: uniform within ±1/√features, bias zero.

    One start for all makes teachers agree more than each its own would (Anonymous 2025, section 4), and it is public,
    so it costs no privacy.
    """
    bound = 1 / math.sqrt(features)
    weight = torch.empty(classes, features).uniform_(
        -bound, bound, generator=torch_generator(seed, "initial head", features, classes)
    )
    return LinearHead(weight.numpy(), np.zeros(classes, np.float32))
