"""Canaries in sums over records: rows that move the sums by as much as is charged for a replaced unit.

A canary is a unit of one record. A fair coin decides which of two rows of features it has, with the same label. The
rows are far from the mean of the public features, so their vectors x and x' have length 1 and any direction; x·x' =
−1/2 is the worst case for moments, x' = −x for gradients (`RoundSchedule`). So the audit models an adversary who
chooses the features of its record, knows all other records, and sees all releases.

Each coin moves the sum of every round along one direction: x xᵀ − x'x'ᵀ and (x − x') yᵀ for moments, x eᵀ − x'e'ᵀ for
gradients, which depends on the releases of earlier rounds. The score of a canary is the inner product of the released
sums with its direction, over the variance of the noise (a matched filter), decoded jointly (`guess_from_sums`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.gradient_rounds import RoundSchedule, flatten_moments, unflatten_moments
from terrine.aggregation.records import STEP, Floats, Records, Whitening
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.auditing.canaries import Guess, Products, guess_from_sums

_FAR = 1e4
"""Length of a whitened row relative to the constant appended to it, which becomes negligible in the row's vector."""
_NO_NOISE = 1e-3
"""Standard deviation assumed for sums without noise: the guesser divides by it."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """Audited rounds over records, the last `canaries` of which are determined by coins.

    Attributes:
        worlds: Records of two worlds: all canaries with coin "one", and all with coin "other".
    """

    schedule: RoundSchedule
    worlds: tuple[Records, Records]
    canaries: int

    @classmethod
    def of_canaries(
        cls, schedule: RoundSchedule, whitening: Whitening, count: int, classes: int, generator: np.random.Generator
    ) -> Self:
        """Return canaries without other records, with random labels and random, nearly orthogonal directions."""
        rows = generator.standard_normal((2, count, len(whitening.mean)))
        first, second = rows / np.linalg.norm(rows, axis=2, keepdims=True)
        across = second - (second * first).sum(axis=1, keepdims=True) * first
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        other = -first if schedule.rounds else (across * np.sqrt(3) - first) / 2
        features = np.linalg.inv(whitening.matrix) * _FAR * whitening.constant
        labels = generator.integers(2 if schedule.findings else classes, size=(count, classes))
        worlds = [
            Records.of(
                whitening.vectors(rows @ features + whitening.mean),
                labels if schedule.findings else labels[:, 0],
                np.arange(count),
                classes,
            )
            for rows in (first, other)
        ]
        return cls(schedule, (worlds[0], worlds[1]), count)

    def world(self, coins: NDArray[np.bool_]) -> Records:
        """Return all records for coins [canaries], True for "one"."""
        one, other = self.worlds
        chosen = np.concatenate([np.ones(len(one.labels) - len(coins), np.bool_), coins])
        return Records(np.where(chosen[:, None], one.vectors, other.vectors), one.labels, one.weights, one.classes)

    def guess(self, released: Mapping[str, NDArray[Any]], *, noise: bool = True) -> Guess:
        """Guess every coin from the arrays of `Sums.release`, with or without noise."""
        return guess_from_sums(part.white if noise else part for part in self._products(released, noise))

    def moved(self, released: Mapping[str, NDArray[Any]]) -> Floats:
        """Return the norm by which each coin moves all sums, relative to the charge [canaries]."""
        square = sum(np.diag(part.kernel) for part in self._products(released, True))
        return np.asarray(np.sqrt(square / mu_squared(self.schedule.event)))

    def _products(self, released: Mapping[str, NDArray[Any]], noise: bool) -> list[Products]:
        """Return the sums of all rounds as products: second moments, label moments, and all gradients together."""
        schedule, (length, classes) = self.schedule, released["labels"].shape
        sigmas = (schedule.sigma, schedule.sigma_gradients) if noise else (_NO_NOISE, _NO_NOISE)
        last = np.arange(len(self.worlds[0].labels)) >= len(self.worlds[0].labels) - self.canaries
        one, other = (world.subset(last) for world in self.worlds)
        summing, descent = [schedule.summing(world) for world in self.worlds], schedule.descent(length)

        def residual(numbers: Floats) -> Floats:
            middle = sum(sums(descent.broadcast) for sums in summing) * (STEP / 2)
            descent.receive(numbers)
            return numbers - middle

        second, labels = unflatten_moments(residual(flatten_moments(released["second"], released["labels"])), length)
        left = one.vectors.astype(np.float64), other.vectors.astype(np.float64)
        targets = _stack_rounds([(one.label_vectors(), other.label_vectors())])
        parts = [Products(left, _stack_rounds([(one.vectors, other.vectors)]), second[None], sigmas[0])]
        parts.append(Products(left, targets, labels[None], sigmas[0]))
        errors, residuals = [], []
        for number, gradient in enumerate(released.get("gradients", ())):
            broadcast = descent.broadcast
            assert broadcast is not None
            head, lens = schedule.split_broadcast(broadcast, length)
            if number == 0:  # all rounds use the lens of the first
                one, other = one.apply_lens(lens), other.apply_lens(lens)
            errors.append((one.errors(head, schedule.clip), other.errors(head, schedule.clip)))
            residuals.append(residual(gradient.ravel()).reshape(length, classes))
        if errors:
            left = one.vectors.astype(np.float64), other.vectors.astype(np.float64)
            parts.append(Products(left, _stack_rounds(errors), np.stack(residuals), sigmas[1]))
        return parts


def _stack_rounds(pairs: list[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> tuple[Floats, Floats]:
    """Stack the rounds' right factors [canaries, numbers] to [canaries, rounds, numbers], for "one" and for "other"."""
    one, other = (np.stack(side, axis=1).astype(np.float64) for side in zip(*pairs, strict=True))
    return one, other
