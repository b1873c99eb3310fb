"""Sums in fixed point: the shares of parties in a round, their noise, and the released numbers.

`SummedRounds` is the base class of such rounds, `FixedPoint` implements sums over records, and `SharedAverages`
averages of teachers (`terrine.teachers.averaging.shared`). For records, all numbers of a round are multiples of one
step, that of the finest lattice on which their noise is drawn; sums of records are multiples of it, too
(`terrine.aggregation.records`). So parties' sums and the noise add up as integers to exactly what `Sums.release`
computes with the same noise in one process.

**No overflow.** Shares are modulo 2^64. A unit moves no number by more than 1, so N units give at most N/step; the
noise is at most 2^53 of its own steps (`terrine.privacy.noise` refuses more), i.e. 2^54 of the round's. With
N ≤ (2^63 − 2^55) · step, which is at least 2^18 σ units less 0.2 %, totals stay within 64 bits. Terms that allow more
units are refused, and so is a party's sum that is too large for its units. A party that adds any other number c only
spoils the total: n + c + η modulo 2^64 is computed from n + η.
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
    """State after each round: a function of the releases only."""

    @property
    def broadcast(self) -> Floats | None:
        """Input of the next round as one array, or None if it has none."""

    def receive(self, numbers: Floats) -> None:
        """Process the release of the next round."""


class SummedRounds(ABC):
    """Rounds that add up parties' numbers as integer steps, and add noise to the total."""

    passes: int
    """Number of rounds."""

    @property
    @abstractmethod
    def event(self) -> Event:
        """Total cost of all rounds."""

    @abstractmethod
    def parts(self, number: int) -> list[tuple[int, float]]:
        """Return (count, standard deviation of the noise) of each run of consecutive numbers in a round."""

    @abstractmethod
    def steps(self, number: int) -> list[float]:
        """Return the step of each part of a round; the numbers of a part are multiples of its step."""

    @abstractmethod
    def broadcast_size(self, number: int) -> int:
        """Return the number of values broadcast before a round, or after the last one."""

    @abstractmethod
    def iterator(self) -> RoundIterator:
        """Return the state before the first round."""

    @property
    def counts(self) -> list[int]:
        """Number of values in each round."""
        return [sum(count for count, _ in self.parts(number)) for number in range(self.passes)]

    @property
    def numbers(self) -> int:
        """Number of values in all rounds together."""
        return sum(self.counts)

    def noise(self, source: NoiseSource, number: int) -> Steps:
        """Draw the noise on a round's total, int64 [numbers], in the order of `parts`."""
        parts = zip(self.parts(number), self.steps(number), strict=True)
        return np.concatenate([noise_in_steps(source, (count,), sigma, step) for (count, sigma), step in parts])

    def opened(self, total: Steps, number: int) -> Floats:
        """Convert a round's noisy total, int64, to the released numbers."""
        sizes = [count for count, _ in self.parts(number)]
        return np.asarray(total.astype(np.float64) * np.repeat(self.steps(number), sizes))


@dataclass(frozen=True)
class FixedPoint(SummedRounds):
    """Rounds over vectors with `length` coordinates and `classes` classes, as integers.

    Raises:
        SettingError: The noise's lattice is too coarse (`noised_sum.common_step`); raised when a step is computed.
    """

    length: int
    classes: int
    schedule: RoundSchedule

    @property
    def passes(self) -> int:  # type: ignore[override]
        return self.schedule.passes

    @property
    def event(self) -> Event:
        return self.schedule.event

    def parts(self, number: int) -> list[tuple[int, float]]:
        return self.schedule.noise(self.length, self.classes, number)

    def step(self, number: int) -> float:
        """Return the step of all numbers of a round."""
        return min(common_step(sigma, STEP) for _, sigma in self.parts(number))

    def steps(self, number: int) -> list[float]:
        """See `SummedRounds.steps`: the same for all parts."""
        return [self.step(number)] * len(self.parts(number))

    def broadcast_size(self, number: int) -> int:
        return self.schedule.broadcast_size(self.length, self.classes, number)

    def iterator(self) -> RoundIterator:
        return self.schedule.descent(self.length)

    @property
    def most_units(self) -> int:
        """Maximum number of units, over all parties, without overflow."""
        return int(_LARGEST * min(self.step(0), self.step(self.schedule.rounds)))

    def shared(self, sums: NDArray[Any], units: int, number: int) -> Steps:
        """Convert a party's sums of a round, int64, from steps of `records.STEP` to steps of the round.

        Raises:
            InputError: The sums are larger than `units` units can contribute.
        """
        if sums.shape != (self.counts[number],) or sums.dtype.kind != "i":
            raise InputError(
                f"Sums are integers [{self.counts[number]}], got {sums.dtype} of shape {list(sums.shape)}."
            )
        most = round(units / STEP)
        if int(sums.max()) > most or int(sums.min()) < -most:
            raise InputError(
                f"A party's sum is too large for {units:,} units, the maximum that the terms allow it. Nothing was "
                "shared: agree on terms with more."
            )
        return np.asarray(sums, dtype=np.int64) * round(STEP / self.step(number))

    def released(self, totals: Steps) -> dict[str, Floats]:
        """Return the arrays of `Sums.release` from the totals of all rounds, int64 [numbers]."""
        rounds = np.split(totals, np.cumsum(self.counts)[:-1])
        return self.schedule.arrays([self.opened(total, at) for at, total in enumerate(rounds)], self.length)
