"""Sums in fixed point: what parties share of their own in a round, with which noise, and what is read off the total.

`SummedRounds` is any course of such rounds, `FixedPoint` that of sums over records; averages of teachers are another
(`terrine.teachers.averaging.shared`). Of records, all numbers of a round are whole multiples of one step, that of the
finest lattice their noise is drawn on; sums of records lie on it (`terrine.aggregation.records`). So parties' sums, and
the noise, add up as whole numbers to what `Sums.release` has with the same noise in one place, to the bit.

**Nothing wraps around.** Shares are modulo 2^64. A unit moves no number by more than 1, so N units give at most N/step;
the noise is at most 2^53 steps of its own (`terrine.privacy.noise` refuses more), which is 2^54 of these. With
N ≤ (2^63 − 2^55) · step, at σ standard deviations at least 2^18 σ units less a five-hundredth, totals stay within 64
bits. Terms that allow more are refused, and so is a party's sum that is larger than the units it may have could make
it. Whoever shares something else only spoils the total: n + c + η modulo 2^64 is computed from n + η.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.gradient_rounds import RoundSchedule
from terrine.aggregation.records import STEP, Floats, Steps
from terrine.errors import InputError
from terrine.privacy.accounting.events import Event
from terrine.privacy.noise import NoiseSource
from terrine.privacy.noised_sum import common_step, noise_in_steps

_LARGEST = 2**63 - 2**55


class RoundIterator(Protocol):
    """What follows from the rounds, one after the other: a function of what they released, and of nothing else."""

    @property
    def question(self) -> Floats | None:
        """What the next round is asked at, in one row of numbers; None where that is nothing."""

    def take(self, numbers: Floats) -> None:
        """Go on with what the next round released."""


class SummedRounds(ABC):
    """Rounds in each of which parties add up numbers of their own, as whole steps, and noise is added to the total."""

    @property
    @abstractmethod
    def passes(self) -> int:
        """How many rounds there are."""

    @property
    @abstractmethod
    def event(self) -> Event:
        """What all rounds cost together."""

    @abstractmethod
    def parts(self, number: int) -> list[tuple[int, float]]:
        """How many numbers of a round have noise of which standard deviation, one after the other."""

    @abstractmethod
    def steps(self, number: int) -> list[float]:
        """What the numbers of each of these parts are whole multiples of."""

    @abstractmethod
    def asked(self, number: int) -> int:
        """How many numbers say at what a round is asked, and at what whatever follows the last is."""

    @abstractmethod
    def walk(self) -> RoundIterator:
        """Begin with what follows from the rounds."""

    @property
    def counts(self) -> list[int]:
        """How many numbers each round has."""
        return [sum(count for count, _ in self.parts(number)) for number in range(self.passes)]

    @property
    def numbers(self) -> int:
        """How many numbers all rounds have."""
        return sum(self.counts)

    def noise(self, source: NoiseSource, number: int) -> Steps:
        """Draw the noise on a round's total, int64 [numbers of it], in the order of `parts`."""
        parts = zip(self.parts(number), self.steps(number), strict=True)
        return np.concatenate([noise_in_steps(source, (count,), sigma, step) for (count, sigma), step in parts])

    def opened(self, total: Steps, number: int) -> Floats:
        """Return the numbers that a round released, from its total with noise, int64."""
        sizes = [count for count, _ in self.parts(number)]
        return np.asarray(total.astype(np.float64) * np.repeat(self.steps(number), sizes))


@dataclass(frozen=True)
class FixedPoint(SummedRounds):
    """A course over vectors with `length` coordinates by `classes`, as whole numbers.

    Raises:
        SettingError: noise on too coarse a lattice (`clipped_sum.common_step`), where a step is asked for.
    """

    length: int
    classes: int
    course: RoundSchedule

    @property
    def passes(self) -> int:
        return self.course.passes

    @property
    def event(self) -> Event:
        return self.course.event

    def parts(self, number: int) -> list[tuple[int, float]]:
        return self.course.noise(self.length, self.classes, number)

    def step(self, number: int) -> float:
        """What all numbers of a round are whole multiples of."""
        return min(common_step(sigma, STEP) for _, sigma in self.parts(number))

    def steps(self, number: int) -> list[float]:
        """See `SummedRounds.steps`: the same for all parts."""
        return [self.step(number)] * len(self.parts(number))

    def asked(self, number: int) -> int:
        return self.course.asked(self.length, self.classes, number)

    def walk(self) -> RoundIterator:
        return self.course.descent(self.length)

    @property
    def most_units(self) -> int:
        """Of how many units of all parties sums cannot wrap around."""
        return int(_LARGEST * min(self.step(0), self.step(self.course.rounds)))

    def shared(self, sums: NDArray[Any], units: int, number: int) -> Steps:
        """Return what a party shares in a round: its sums, in steps of `records.STEP`, as whole numbers int64.

        Raises InputError for sums that so many units cannot have.
        """
        if sums.shape != (self.counts[number],) or sums.dtype.kind != "i":
            raise InputError(
                f"Sums are whole numbers [{self.counts[number]}], got {sums.dtype} of shape {list(sums.shape)}."
            )
        most = round(units / STEP)
        if int(sums.max()) > most or int(sums.min()) < -most:
            raise InputError(
                f"A sum over a party's records lies outside what {units:,} of them can have, which is as many as the "
                "terms allow it. Nothing was shared: agree on terms in which it may have more."
            )
        return np.asarray(sums, dtype=np.int64) * round(STEP / self.step(number))

    def released(self, totals: Steps) -> dict[str, Floats]:
        """Return the arrays of `Sums.release` from the totals of all rounds, int64 [numbers]."""
        rounds = np.split(totals, np.cumsum(self.counts)[:-1])
        return self.course.arrays([self.opened(total, at) for at, total in enumerate(rounds)], self.length)
