"""Averages among parties that see nothing of one another: rounds of clipped sums in secret shares, then votes.

Each party clips the updates of its own teachers, adds them up in whole steps of the lattice that the noise is drawn on
(`terrine.privacy.noised_sum`), and splits the sum into two shares modulo 2^64. The guardian adds the noise to its
share, the student party opens the noisy total and tells all parties what follows from it: at the end of round r the
average of round r + 1, at the end of the last the one that teachers start from before they vote.

**To the bit what one place releases.** Whole steps add up exactly, in any order and dealing, and the noise is drawn on
the same lattice. So the total is that of `PrivateAveraging.release` with the same noise.

**What a unit moves.** It is in one teacher's records, so exchanged, added or removed it exchanges one clipped update:
the sum moves by 2S at most, whatever average the update started from. So every released vector costs (2/z)², as where
one process averages, also where a student party tells parties averages of its own choice, or each another one; and
given what was released a teacher is a function of its own records alone, so that votes cost what they always do. Of a
person at K parties K updates move, by 2S each: `events.of_several`.

**Nothing wraps around.** An update lies within S on every coordinate, rounding paid for, and so N of them within N·S;
the noise is at most 2^53 of its steps (`terrine.privacy.noise` refuses more). `ClippedSum.fits` holds N·S below 2^62
steps, so totals stay within 2^62 + 2^53 < 2^63, and are read off modulo 2^64 as what they are. A party whose own sum is
larger than its teachers' updates can be shares nothing. Whoever shares something else, an update of any length say,
only spoils the average and protects its own people less: n + c + η modulo 2^64 is computed from n + η.

**Who is away stands still.** Means are over all N teachers that were agreed on. A party that is late for a round counts
in it as one whose updates are zero, which is what Algorithm 1 makes of a party without records; noise and accounting
stay as agreed.

The average is told as how far it is from the public start, which parties make for themselves, so the student party
needs neither backbone nor network, and none of this needs torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from terrine.aggregation.fixed_point import RoundIterator, SummedRounds
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event
from terrine.privacy.noise import lattice_step
from terrine.privacy.noised_sum import ClippedSum
from terrine.teachers.averaging.private import PrivateAveraging
from terrine.teachers.averaging.ttac import Average, server_step


@dataclass(frozen=True)
class Start:
    """What a round starts from, as it is told: the average, from the public start on; the centre, where there is one.

    average: None in the rounds before any average was made.
    """

    average: Average | None
    centre: np.ndarray | None


@dataclass(frozen=True)
class SharedAverages(SummedRounds):
    """The rounds of `averaging` by `teachers` of all parties, whose updates are `weights` numbers long.

    features: the length of the centre, which is released first; 0 where there is none.

    Raises:
        SettingError: averages that could wrap around, or whose updates would drown in the noise's lattice; and a
            centre without a length, or a length without a centre.
    """

    averaging: PrivateAveraging
    teachers: int
    weights: int
    features: int = 0

    def __post_init__(self) -> None:
        if bool(self.features) != self.averaging.centred:
            raise SettingError(
                f"features={self.features} does not go with centre={self.averaging.settings.centre}: it is the length "
                "of a shared centre"
            )
        for number in range(self.passes):
            for mechanism, length in self._mechanisms(number):
                if not mechanism.fits(self.teachers):
                    raise SettingError(
                        f"{self.teachers:,} teachers in all could wrap averages around at noise_multiplier="
                        f"{self.averaging.noise_multiplier:g}: use more noise, or fewer teachers"
                    )
                mechanism.clipped(np.zeros((0, length)))  # refuses a lattice that drowns vectors of this length

    @property
    def first(self) -> int:
        """The number of the first round of local steps: the centre's is before it."""
        return int(self.averaging.centred)

    @property
    def passes(self) -> int:
        """See `SummedRounds.passes`: R rounds of training use R − 1 averages."""
        return self.first + self.averaging.settings.rounds - 1

    @property
    def event(self) -> Event:
        return self.averaging.whole_event()

    def parts(self, number: int) -> list[tuple[int, float]]:
        return [(length, mechanism.sigma) for mechanism, length in self._mechanisms(number)]

    def steps(self, number: int) -> list[float]:
        """See `SummedRounds.steps`: every vector's own lattice."""
        return [lattice_step(mechanism.sigma) for mechanism, _ in self._mechanisms(number)]

    def asked(self, number: int) -> int:
        """See `SummedRounds.asked`: the centre, then θ from its start on, then c."""
        return self.features * (number > 0) + 2 * self.weights * (number > self.first)

    def walk(self) -> RoundIterator:
        return _Walk(self)

    def start(self, question: np.ndarray | None, number: int) -> Start:
        """Return what round `number` starts from, of the question that it is asked at."""
        if question is None:
            return Start(None, None)
        centre, *told = np.split(question, [self.features, self.features + self.weights])
        return Start(Average(*told) if number > self.first else None, centre if self.features else None)

    def shared(self, vectors: Sequence[np.ndarray], number: int) -> np.ndarray:
        """Return what a party shares in a round, int64 [numbers of it]: its teachers' vectors, clipped and added up.

        vectors: [own teachers, length] each, in the order of `parts`. Raises InputError for vectors of other lengths.
        """
        found = []
        for (mechanism, length), own in zip(self._mechanisms(number), vectors, strict=True):
            if own.shape[1:] != (length,):
                raise InputError(
                    f"Updates here are {own.shape[1]:,} numbers long, and the terms say {length:,}: nothing was "
                    "shared. The backbone, or its settings, are not those of whoever wrote the terms."
                )
            total = mechanism.total([own])
            most = len(own) * mechanism.clip / lattice_step(mechanism.sigma)
            if int(total.max()) > most or int(total.min()) < -most:
                raise InputError("A party's sum lies outside what its teachers' updates can be. Nothing was shared.")
            found.append(total)
        return np.concatenate(found)

    def opened(self, total: np.ndarray, number: int) -> np.ndarray:
        """See `SummedRounds.opened`: means over all teachers."""
        return super().opened(total, number) / self.teachers

    def _mechanisms(self, number: int) -> list[tuple[ClippedSum, int]]:
        """The clipped sums that a round releases, each with its length."""
        if number < self.first:
            return [(self.averaging.centre_mechanism, self.features)]
        return [(mechanism, self.weights) for mechanism in self.averaging.mechanisms(number - self.first)]


class _Walk:
    """See `terrine.aggregation.fixed_point.RoundIterator`."""

    def __init__(self, shared: SharedAverages) -> None:
        self._shared, self._number = shared, 0
        self._centre = np.empty(0)
        self._average = Average(np.zeros(shared.weights), np.zeros(shared.weights))

    @property
    def question(self) -> np.ndarray | None:
        """See `SharedAverages.asked`; None before anything was released."""
        if not self._number:
            return None
        told = [self._average.value, self._average.control] if self._number > self._shared.first else []
        return np.concatenate([self._centre, *told])

    def take(self, numbers: np.ndarray) -> None:
        """Take the step that the mean updates of the next round make, or the centre."""
        shared, averaging = self._shared, self._shared.averaging
        number, self._number = self._number - shared.first, self._number + 1
        if number < 0:
            self._centre = numbers
            return
        names = ("update", "control_update")
        means = dict(zip(names, np.split(numbers, len(numbers) // shared.weights), strict=False))
        update, control = averaging.means(means, self._average, number)
        self._average = server_step(self._average, update, control, averaging.settings)
