"""A linear head: what turns a feature vector into one score per class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from terrine.errors import InputError
from terrine.randomness import torch_generator


@dataclass(frozen=True)
class LinearHead:
    """Scores of a feature vector x are `weight` x + `bias`; float32 weight [classes, features], bias [classes]."""

    weight: np.ndarray
    bias: np.ndarray

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or self.bias.shape != self.weight.shape[:1]:
            raise InputError(
                f"A linear head takes a weight [classes, features] and a bias [classes], not arrays of shapes "
                f"{self.weight.shape} and {self.bias.shape}."
            )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, as a safetensors file holds them."""
        return {"weight": self.weight, "bias": self.bias}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> LinearHead:
        """Return the head that `to_arrays` described. Raises InputError when an array is missing or misshapen."""
        if not {"weight", "bias"} <= arrays.keys():
            raise InputError(f"A linear head needs the arrays weight and bias; there are: {', '.join(sorted(arrays))}.")
        return cls(np.asarray(arrays["weight"], np.float32), np.asarray(arrays["bias"], np.float32))


def initial_head(features: int, classes: int, seed: int) -> LinearHead:
    """Return the random head that all teachers of `seed` start from: uniform within ±1/√features, bias zero.

    One start for all makes teachers agree more than each its own would (000_af12db1dbb9ad79b, section 4), and it is
    public, so it costs no privacy.
    """
    bound = 1 / math.sqrt(features)
    weight = torch.empty(classes, features).uniform_(
        -bound, bound, generator=torch_generator(seed, "initial head", features, classes)
    )
    return LinearHead(weight.numpy(), np.zeros(classes, np.float32))
