"""A forest as a head: regression trees as plain arrays, stored without code and answered by torch alone.

Every tree sends a feature vector from its root to a leaf, left where the node's feature is at most its threshold; a
leaf holds shares of votes. The scores are the logarithms of the mean shares, so that their softmax are these shares.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from terrine.errors import InputError

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
    """The nodes of all trees, one after another.

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
        leaf = (self.left == np.arange(nodes)) & (self.right == np.arange(nodes)) if inside else np.empty(0)
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
    def from_arrays(cls, arrays: dict[str, Any]) -> Self:
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
