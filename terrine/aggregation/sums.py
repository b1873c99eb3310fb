"""What mechanisms have in common that add up what records say themselves: sums in, a linear head out. Nobody votes.

They are for linear heads on public features (`terrine.aggregation.records`), and for data that may be summed: in one
process, or in fixed point by parties that can add up numbers. All of a run's budget is spent, by public rules, so what
a release costs is known before anything is looked at.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.aggregation import NOTHING, Aggregation
from terrine.aggregation.mechanism import budget_after
from terrine.aggregation.records import Floats, Records, Steps, noised
from terrine.errors import SettingError
from terrine.privacy.accounting.events import Event, GaussianEvent
from terrine.privacy.noise import NoiseSource

ROOM = 1 - 1e-9
"""Of a budget's μ, what may be spent: sums of costs are rounded upwards."""
_PENALTY = 0.5
_SHARP = 5.0
"""From scores near 0 and 1, which least squares gives, to those of a softmax."""


class Sums(Aggregation):
    """A way to learn a linear head from sums over records with noise.

    Formal guarantee of an implementation: the arrays of `release` are, given the earlier ones, what the mechanisms in
    `event` release about the records, where neighbours differ in one unit: exchanged, added or removed. The event's μ
    is at most the one given.
    """

    reveals: ClassVar[Literal["argmax", "histogram", "sums"]] = "sums"

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Aggregation.worst_case`: exactly what will be spent, whatever the queries are."""
        return self.event(mu_left(epsilon, delta, spent))

    @abstractmethod
    def event(self, mu: float) -> Event:
        """What a release costs that may cost μ; no data is looked at."""

    @abstractmethod
    def release(self, records: Records, mu: float, noise: NoiseSource) -> dict[str, NDArray[np.float64]]:
        """Return what is released, by name, for a budget μ.

        Raises:
            SettingError: a budget so small that noise is drawn on too coarse a lattice.
        """

    @abstractmethod
    def head(self, released: dict[str, NDArray[Any]], mu: float) -> Floats:
        """Return the head's weights [length, classes] on vectors: a function of what was released."""

    @abstractmethod
    def numbers(self, length: int, classes: int) -> int:
        """How many numbers with noise are released of vectors of this length."""

    def check(self, run: Any) -> None:
        """See `Settings.check`."""
        name = f"aggregation.mechanism={self.mechanism}"
        if run.aggregation.where == "parties" and not self.by_parties:
            raise ValueError(
                f"{name} does not go with aggregation.where=parties yet: parties add up once, and it takes rounds. Use "
                "moments, or local, where the data may be in one place"
            )
        reason = None
        if run.transcription is not None:
            reason = "a transcription releases annotations. Set transcription to null"
        elif run.data.name == "table":
            reason = "its features are those of images. Use a mechanism that counts votes"
        elif run.student.kind != "sums":
            reason = (
                f"a student of kind {run.student.kind} learns from answers, of which there are none. Set "
                "student.kind=sums"
            )
        elif run.teachers.averages:
            reason = "no teacher learns anything. Set teachers.kind=linear"
        elif run.queries.rounds > 1:
            reason = "nobody is asked anything. Set queries.rounds=1"
        elif run.student.statistics == "current":
            reason = (
                "under current statistics one record would move the features of its whole batch, and the sum by "
                "far more than it is charged for. Set student.statistics=original"
            )
        if reason:
            raise ValueError(f"{name}: {reason}")


def mu_left(epsilon: float, delta: float, spent: Event = NOTHING) -> float:
    """Return the μ of a run's budget after what was spent. Raises SettingError where nothing is left."""
    left = budget_after(spent, epsilon, delta).mu_squared_left
    if not left > 0:
        raise SettingError("Nothing of the budget is left for sums over records. Raise aggregation.epsilon.")
    return math.sqrt(left) * ROOM


def sigma_of_moments(mu: float) -> float:
    """Return the noise on S and M at which both together cost μ; see `noised_moments`."""
    return math.sqrt(JOINT) / mu


JOINT = 4.5
"""The largest squared distance of (S, M) between neighbours: `noised_moments`."""


def event_of_moments(mu: float) -> Event:
    """Return what second moments and label moments cost together for a budget μ."""
    return event_at_noise(sigma_of_moments(mu))


def event_at_noise(sigma: float) -> Event:
    """Return what they cost together with noise σ."""
    return GaussianEvent(sensitivity=math.sqrt(JOINT), sigma=sigma)


def noised_moments(records: Records, mu: float, noise: NoiseSource) -> tuple[Floats, Floats]:
    """Return S = Σ x xᵀ and M = Σ x yᵀ over units with noise, [length, length] (symmetric) and [length, classes].

    Of S the upper triangle is released, with noise σ on the diagonal and σ/√2 off it: as if off-diagonal entries were
    taken times √2, which makes of S a vector whose length is its Frobenius norm. M has noise σ.

    **What one unit moves.** Let a record's vector be x and its label's y, and x', y' what is exchanged for it, with
    r = ‖x‖ ≤ 1, s = ‖x'‖ ≤ 1 and p = x·x'. Added or removed it moves (S, M) by r⁴ + r² ≤ 2, squared. Exchanged:

        ‖x xᵀ − x'x'ᵀ‖² = r⁴ + s⁴ − 2p²,   ‖x yᵀ − x'y'ᵀ‖² = r² + s² − 2p for equal labels, r² + s² for others,

    at most 4 − 2p² − 2p ≤ 4.5 together, reached by vectors of length 1 of one label with p = −1/2. A unit of several
    records moves the mean of what they would, and means are no farther apart. So both cost μ² = 4.5/σ² at most.
    """
    parts = noise_on_moments(records.length, records.classes, sigma_of_moments(mu))
    sums = np.split(moments_in_steps(records), np.cumsum([count for count, _ in parts])[:-1])
    numbers = [noised(part, sigma, noise) for part, (_, sigma) in zip(sums, parts, strict=True)]
    return moments_from(np.concatenate(numbers), records.length)


def noise_on_moments(length: int, classes: int, sigma: float) -> list[tuple[int, float]]:
    """How many numbers have which noise, one after the other: S's diagonal, what is above it, M."""
    return [(length, sigma), (length * (length - 1) // 2, sigma / math.sqrt(2)), (length * classes, sigma)]


def moments_in_steps(records: Records) -> Steps:
    """Return S and M in whole steps as one row of numbers, in the order of `noise_on_moments`."""
    second = records.second_moments()
    above = second[np.triu_indices(records.length, 1)]
    return np.concatenate([np.diagonal(second), above, records.label_moments().ravel()])


def moments_from(numbers: Floats, length: int) -> tuple[Floats, Floats]:
    """Return S and M, whose numbers are given in the order of `noise_on_moments`."""
    upper = length * (length + 1) // 2
    second = np.diag(numbers[:length])
    above = np.triu_indices(length, 1)
    second[above] = second.T[above] = numbers[length:upper]
    return second, numbers[upper:].reshape(length, -1)


def inverse_root(second: Floats, mu: float, power: float = 1.0) -> Floats:
    """Return (S + λI)^-power of second moments with noise, in units of (S + λI)⁻¹: of its mean eigenvalue^(1 − power).

    λ comes from the noise alone, whose own largest eigenvalue is about √2 σ √d; eigenvalues that it drove below zero
    are taken for zero.
    """
    penalty = _PENALTY * sigma_of_moments(mu) * math.sqrt(len(second))
    values, vectors = np.linalg.eigh(second)
    inverse = 1 / (np.maximum(values, 0) + penalty)
    return np.asarray((vectors * inverse**power) @ vectors.T * inverse.mean() ** (1 - power))


def ridge(second: Floats, labels: Floats, mu: float) -> Floats:
    """Return the head [length, classes] of released moments by ridge regression."""
    return np.asarray(_SHARP * (inverse_root(second, mu) @ (labels - labels.mean(axis=1, keepdims=True))))
