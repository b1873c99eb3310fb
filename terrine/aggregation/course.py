"""A course of rounds: what records add up in each, with which noise, what that costs, and the head that follows.

The first round releases moments, from which ridge regression has a head. Each further one releases the sum of all
records' clipped gradients at the head that the rounds before it made public, and takes a step. `moments` is the course
without further rounds. Whether one process walks it or parties do (`terrine.aggregation.fixed_point`) changes no bit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.records import Floats, Records, Steps
from terrine.privacy.accounting.events import Event, GaussianEvent, RepeatedEvent, compose

JOINT = 4.5
"""The largest squared distance of (S, M) between neighbours: `Course`."""
_PENALTY = 0.5
_SHARP = 5.0
"""From scores near 0 and 1, which least squares gives, to those of a softmax."""
_POWER = 0.75
_MOMENTUM = 0.8
_AVERAGED = 0.4  # of the iterates, the last ones


@dataclass(frozen=True)
class Course:
    """What is released of all records, round by round.

    **Round 0**: S = Σ x xᵀ and M = Σ x yᵀ over units with noise, [length, length] (symmetric) and [length, classes].
    Of S the upper triangle is released, with noise σ on the diagonal and σ/√2 off it: as if off-diagonal entries were
    taken times √2, which makes of S a vector whose length is its Frobenius norm. M has noise σ.

    *What one unit moves.* Let a record's vector be x and its label's y, and x', y' what is exchanged for it, with
    r = ‖x‖ ≤ 1, s = ‖x'‖ ≤ 1 and p = x·x'. Added or removed it moves (S, M) by r⁴ + r² ≤ 2, squared. Exchanged:

        ‖x xᵀ − x'x'ᵀ‖² = r⁴ + s⁴ − 2p²,   ‖x yᵀ − x'y'ᵀ‖² = r² + s² − 2p for equal labels, r² + s² for others,

    at most 4 − 2p² − 2p ≤ 4.5 together, reached by vectors of length 1 of one label with p = −1/2. A unit of several
    records moves the mean of what they would, and means are no farther apart. So both cost μ² = 4.5/σ² at most.

    **Every further round**: G = Σ x eᵀ (`Records.gradients`) at a head, with noise on each coordinate. A record's
    gradient has a norm of `clip` at most, whatever the head is: so added or removed it moves G by `clip`, and exchanged
    by twice that. Where parties ask at heads of their own choice, the price is the same.

    Attributes:
        sigma: Noise on label moments.
        rounds: Of gradients, after that of moments.
        clip: Largest length of a record's gradient.
        learning_rate: Step, in units of the one that least squares would take at once.
        sigma_gradients: Noise on each coordinate of a gradient.
    """

    sigma: float
    rounds: int = 0
    clip: float = 0.0
    learning_rate: float = 0.0
    sigma_gradients: float = 0.0

    @property
    def passes(self) -> int:
        """How often records are summed."""
        return 1 + self.rounds

    @property
    def event(self) -> Event:
        """What all rounds cost together."""
        moments = GaussianEvent(sensitivity=math.sqrt(JOINT), sigma=self.sigma)
        if not self.rounds:
            return moments
        return compose(
            moments, RepeatedEvent(GaussianEvent(sensitivity=2 * self.clip, sigma=self.sigma_gradients), self.rounds)
        )

    def noise(self, length: int, classes: int, number: int) -> list[tuple[int, float]]:
        """How many numbers of a round have which noise, one after the other: S's diagonal, what is above it, M; G."""
        if number:
            return [(length * classes, self.sigma_gradients)]
        above = (length * (length - 1) // 2, self.sigma / math.sqrt(2))
        return [(length, self.sigma), above, (length * classes, self.sigma)]

    def sums(self, records: Records, head: Floats | None) -> Steps:
        """Return what records add up in a round, as one row of whole steps: moments, or gradients at a head."""
        return moments_in_steps(records) if head is None else records.gradients(head, self.clip).ravel()

    def descent(self, length: int) -> "Descent":
        """Begin the course."""
        return Descent(length, self.sigma, self.learning_rate)

    def ends(self, released: Mapping[str, NDArray[Any]]) -> Floats:
        """Return the head that the course ends at, [length, classes]: of the arrays that were released, by name."""
        descent = self.descent(len(released["labels"]))
        descent.take(numbers_of(released["second"], released["labels"]))
        for gradient in released.get("gradients", ()):
            descent.take(gradient)
        return descent.mean

    def arrays(self, released: Sequence[Floats], length: int) -> dict[str, NDArray[np.float64]]:
        """Return by name what the rounds released: `second`, `labels`, and `gradients` [rounds, length, classes]."""
        second, labels = moments_from(released[0], length)
        arrays = {"second": second, "labels": labels}
        if self.rounds:
            arrays["gradients"] = np.stack([numbers.reshape(labels.shape) for numbers in released[1:]])
        return arrays


class Descent:
    """The heads that follow from what was released, one after the other: ridge, then momentum steps in the metric
    (S + λI)^(-3/4) of released moments.

    Args:
        length: Coordinates of a vector.
        sigma: Noise on label moments.
        rate: Step.
    """

    def __init__(self, length: int, sigma: float, rate: float) -> None:
        self._length, self._sigma, self._rate = length, sigma, rate
        self._heads: list[Floats] = []

    @property
    def head(self) -> Floats | None:
        """The one that the next gradients are asked at; None before moments were released."""
        return self._heads[-1] if self._heads else None

    @property
    def mean(self) -> Floats:
        """The mean of the last heads, those that steps led to: what the course ends at."""
        return np.asarray(np.mean(self._heads[-max(1, round(_AVERAGED * (len(self._heads) - 1))) :], axis=0))

    def take(self, numbers: Floats) -> None:
        """Go on with what the next round released, in the order of `Course.noise`."""
        if self.head is None:
            self._second, labels = moments_from(numbers, self._length)
            self._heads, self._velocity = [ridge(self._second, labels, self._sigma)], np.zeros_like(labels)
            return
        self._velocity = _MOMENTUM * self._velocity + self._metric @ numbers.reshape(self.head.shape)
        self._heads.append(self.head - self._rate * self._velocity)

    @cached_property
    def _metric(self) -> Floats:
        return inverse_root(self._second, self._sigma, _POWER)


def sigma_of_moments(mu: float) -> float:
    """Return the noise on S and M at which both together cost μ; see `Course`."""
    return math.sqrt(JOINT) / mu


def moments_in_steps(records: Records) -> Steps:
    """Return S and M in whole steps as one row of numbers, in the order of `Course.noise`."""
    return numbers_of(records.second_moments(), records.label_moments())


def numbers_of(second: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Return S and M as one row of numbers; `moments_from` reads them off it."""
    return np.concatenate([np.diagonal(second), second[np.triu_indices(len(second), 1)], labels.ravel()])


def moments_from(numbers: Floats, length: int) -> tuple[Floats, Floats]:
    """Return S and M, whose numbers are given in the order of `Course.noise`."""
    upper = length * (length + 1) // 2
    second = np.diag(numbers[:length])
    above = np.triu_indices(length, 1)
    second[above] = second.T[above] = numbers[length:upper]
    return second, numbers[upper:].reshape(length, -1)


def inverse_root(second: Floats, sigma: float, power: float = 1.0) -> Floats:
    """Return (S + λI)^-power of second moments with noise, in units of (S + λI)⁻¹: of its mean eigenvalue^(1 − power).

    λ comes from the noise alone, whose own largest eigenvalue is about √2 σ √d; eigenvalues that it drove below zero
    are taken for zero.
    """
    penalty = _PENALTY * sigma * math.sqrt(len(second))
    values, vectors = np.linalg.eigh(second)
    inverse = 1 / (np.maximum(values, 0) + penalty)
    return np.asarray((vectors * inverse**power) @ vectors.T * inverse.mean() ** (1 - power))


def ridge(second: Floats, labels: Floats, sigma: float) -> Floats:
    """Return the head [length, classes] of released moments by ridge regression."""
    return np.asarray(_SHARP * (inverse_root(second, sigma) @ (labels - labels.mean(axis=1, keepdims=True))))
