"""Canaries in sums over records: rows that move the sums as far as an exchanged unit is charged for.

A canary is one record, alone in its unit. A fair coin decides which of two rows of features it has, with the same
label. The rows are far from the mean of the public features, so their vectors x and x' have length 1 and any
direction; x·x' = −1/2 is the worst case for moments, x' = −x for gradients (`RoundSchedule`). So the audit is about an
adversary who chooses the features of its record, who knows all other records, and who sees everything that is released.

Each coin moves the sum of every round along one direction: x xᵀ − x'x'ᵀ and (x − x') yᵀ for moments, x eᵀ − x'e'ᵀ for
gradients. The direction follows from the releases of earlier rounds. The score of a canary is the inner product of the
released sums with its direction, over the variance of the noise (a matched filter), decoded jointly
(`guess_from_sums`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.gradient_rounds import RoundSchedule, flatten_moments, unflatten_moments
from terrine.aggregation.records import STEP, Floats, Records, Whitening
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.auditing.canaries import Guess, Products, guess_from_sums

_FAR = 1e4
"""Length of a whitened row, in units of the constant that follows it: its vector is that row's direction."""
_NO_NOISE = 1e-3
"""Standard deviation assumed for sums without noise: the guesser divides by it."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A course over records of which the last `canaries` have contents that coins decide.

    Attributes:
        course: The rounds that are audited.
        worlds: All records if every coin is "one", and if every coin is "other".
        canaries: Number of records with a coin.
    """

    course: RoundSchedule
    worlds: tuple[Records, Records]
    canaries: int

    @classmethod
    def of_canaries(
        cls, course: RoundSchedule, whitening: Whitening, count: int, classes: int, generator: np.random.Generator
    ) -> Self:
        """Return canaries only, with random labels and random, hence nearly orthogonal, directions."""
        first, second = (_directions(generator.standard_normal((count, len(whitening.mean)))) for _ in range(2))
        across = _directions(second - (second * first).sum(axis=1, keepdims=True) * first)
        other = -first if course.rounds else (across * np.sqrt(3) - first) / 2
        features = np.linalg.inv(whitening.matrix) * _FAR * whitening.constant
        labels = generator.integers(2 if course.findings else classes, size=(count, classes))
        worlds = [
            Records.of(
                whitening.vectors(rows @ features + whitening.mean),
                labels if course.findings else labels[:, 0],
                np.arange(count),
                classes,
            )
            for rows in (first, other)
        ]
        return cls(course, (worlds[0], worlds[1]), count)

    def world(self, coins: NDArray[np.bool_]) -> Records:
        """Return all records with the contents that coins decide, True for "one" [canaries]."""
        one, other = self.worlds
        chosen = np.concatenate([np.ones(len(one.labels) - len(coins), np.bool_), coins])
        return Records(np.where(chosen[:, None], one.vectors, other.vectors), one.labels, one.weights, one.classes)

    def guess(self, released: Mapping[str, NDArray[Any]], *, noise: bool = True) -> Guess:
        """Guess every coin from the arrays of `Sums.release`; without `noise`, from sums that have none."""
        return guess_from_sums(part.white if noise else part for part in self._products(released, noise))

    def moved(self, released: Mapping[str, NDArray[Any]]) -> Floats:
        """Return how far each coin moves all sums together, as a share of what is charged [canaries]."""
        square = sum(np.diag(part.kernel) for part in self._products(released, True))
        return np.asarray(np.sqrt(square / mu_squared(self.course.event)))

    def _products(self, released: Mapping[str, NDArray[Any]], noise: bool) -> list[Products]:
        """Return the sums of all rounds as products: second moments, label moments, and all gradients together."""
        course, (length, classes) = self.course, released["labels"].shape
        sigmas = (course.sigma, course.sigma_gradients) if noise else (_NO_NOISE, _NO_NOISE)
        last = np.arange(len(self.worlds[0].labels)) >= len(self.worlds[0].labels) - self.canaries
        one, other = (world.some(last) for world in self.worlds)
        summing, descent = [course.summing(world) for world in self.worlds], course.descent(length)

        def residual(numbers: Floats) -> Floats:
            middle = sum(sums(descent.question) for sums in summing) * (STEP / 2)
            descent.take(numbers)
            return numbers - middle

        second, labels = unflatten_moments(residual(flatten_moments(released["second"], released["labels"])), length)
        left, targets = _pair(one.vectors, other.vectors), _pair(one.labels_as_vectors(), other.labels_as_vectors())
        parts = [Products(left, _in_rounds([left]), second[None], sigmas[0])]
        parts.append(Products(left, _in_rounds([targets]), labels[None], sigmas[0]))
        gradients = released.get("gradients", ())
        errors, residuals = [], []
        for number, gradient in enumerate(gradients):
            question = descent.question
            assert question is not None
            head, lens = course.read_question(question, length)
            if number == 0:  # all rounds have the lens of the first
                one, other = one.through(lens), other.through(lens)
            errors.append(_pair(one.errors(head, course.clip), other.errors(head, course.clip)))
            residuals.append(residual(gradient.ravel()).reshape(length, classes))
        if errors:
            left = _pair(one.vectors, other.vectors)
            parts.append(Products(left, _in_rounds(errors), np.stack(residuals), sigmas[1]))
        return parts


def _pair(one: NDArray[np.float32], other: NDArray[np.float32]) -> tuple[Floats, Floats]:
    return one.astype(np.float64), other.astype(np.float64)


def _in_rounds(pairs: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Stack right factors [canaries, numbers] of rounds to [canaries, rounds, numbers], for "one" and for "other"."""
    return np.stack([one for one, _ in pairs], axis=1), np.stack([other for _, other in pairs], axis=1)


def _directions(rows: Floats) -> Floats:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
