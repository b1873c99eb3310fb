"""Randomised response: the true category with a known probability, otherwise another category at random.

    Pr[answer = y] = e^ε / (e^ε + k − 1) for the true category, 1 / (e^ε + k − 1) for each of the others

(Liu et al. 2026, eq. 4, with k categories). `SecureResponse` takes its randomness from the operating system and has no
seed; `ReplayResponse` draws the same from a seed, for tests and ablations, and is NOT PRIVATE.

Guarantee of both distributions: pure ε-differential privacy for the true category. Draws have only 64 bits, so the
probability of answering with the true category is rounded *down* to a multiple of 2^-64; otherwise one of the other
categories is drawn without bias. So the ratio of any two probabilities stays within e^ε.

A true category of −1 (none of them) is answered uniformly. This is the average of the answer distributions of all
categories, so no ratio, and by quasi-convexity no Rényi divergence, is larger than theirs: the cost is the same.
"""

import math
import secrets
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.errors import InputError, SettingError

Labels = NDArray[np.int64]

_LARGEST_EPSILON = 40.0
"""e^40 is about 2^57: above it, 64 bits no longer distinguish the probability from 1."""


def keep_probability(epsilon: float, categories: int) -> float:
    """Return the probability of releasing the true category.

    Raises:
        SettingError: ε or the number of categories is invalid.
    """
    if not 0 <= epsilon <= _LARGEST_EPSILON:
        raise SettingError(f"Randomised response takes an epsilon from 0 to {_LARGEST_EPSILON:g}, got {epsilon!r}.")
    if isinstance(categories, bool) or not isinstance(categories, int) or categories < 2:
        raise SettingError(f"Randomised response needs at least 2 categories, got {categories!r}.")
    return 1 / (1 + (categories - 1) * math.exp(-epsilon))


class ResponseSource(ABC):
    """Answers instead of the truth."""

    @abstractmethod
    def _bits(self, count: int) -> NDArray[np.uint64]:
        """Return random words of 64 fair bits."""

    def respond(self, truth: ArrayLike, epsilon: float, categories: int) -> Labels:
        """Return one answer in 0..categories−1 for each true category in −1..categories−1; −1 is answered uniformly."""
        labels = np.asarray(truth)
        keep = keep_probability(epsilon, categories)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise InputError(f"Randomised response takes whole numbers [labels], got {labels.dtype} {labels.shape}.")
        if labels.size and not (labels.min() >= -1 and labels.max() < categories):
            raise InputError(f"Labels run from {labels.min()} to {labels.max()}, outside −1..{categories - 1}.")
        labels = labels.astype(np.int64)
        # Rounded down by more than the formula's rounding error: never more often the truth than ε allows.
        truthful = self._bits(len(labels)) < np.uint64(math.floor(keep * (1 - 1e-12) * 2**64))
        other = self._below(len(labels), categories - 1)
        other += other >= labels
        answer = np.where(truthful, labels, other)
        outside = labels < 0
        answer[outside] = self._below(int(outside.sum()), categories)
        return answer.astype(np.int64)

    def _below(self, count: int, limit: int) -> Labels:
        """Return integers in 0..limit−1, each with exactly the same probability."""
        most = 2**64 - 2**64 % limit
        drawn = self._bits(count)
        while most < 2**64 and (drawn >= np.uint64(most)).any():
            again = drawn >= np.uint64(most)
            drawn[again] = self._bits(int(again.sum()))
        return (drawn % np.uint64(limit)).astype(np.int64)


class SecureResponse(ResponseSource):
    """Answers from the operating system's entropy."""

    def _bits(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64).copy()


class ReplayResponse(ResponseSource):
    """Randomised response with a seed: equal seeds give equal answers. NOT PRIVATE; for tests and ablations.

    Args:
        seed: Any whole number ≥ 0. Successive calls continue one stream of random numbers.
    """

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise SettingError(f"A seed of replayed answers is a whole number ≥ 0, got {seed}.")
        self._generator = np.random.Generator(np.random.Philox(int(seed)))

    def _bits(self, count: int) -> NDArray[np.uint64]:
        return self._generator.integers(0, 2**64, count, dtype=np.uint64)
