"""Private averages among institutions: rounds of clipped sums in secret shares, then votes.

Each party clips its teachers' updates, adds them up in whole steps of the lattice on which the noise is drawn
(`terrine.privacy.noised_sum`), and splits the sum into two shares modulo 2^64. The guardian adds the noise to its
share; the student party opens the noisy total and sends all parties the new average. The average after round r is the
start of round r + 1; the average after the last shared round is the start from which the voting teachers are trained.

**Bit-equal to one process.** Whole steps add up exactly in every order and distribution over parties, and the noise is
drawn on the same lattice. So the total equals that of `PrivateAveraging.release` with the same noise.

**Sensitivity.** A unit belongs to one teacher, so replacing, adding or removing it replaces one clipped update: the sum
moves by at most 2S, for every average from which the update started. Every released vector therefore costs (2/z)², as
in one process, even if a student party sends parties averages of its choice, or a different one to each. Given the
releases, a teacher is a function of its records only, so votes cost the usual amount. For a person with records at K
parties, K updates move by 2S each: `events.of_several`.

**No overflow.** An update is within S on every coordinate, including rounding, and the sum of N updates within N·S. The
noise is at most 2^53 of its steps (`terrine.privacy.noise` refuses more). `ClippedSum.fits` keeps N·S below 2^62 steps,
so totals stay within 2^62 + 2^53 < 2^63 and can be read modulo 2^64. A sum above the maximum for a party's teachers is
refused. A party that shares anything else, such as an unclipped update c, spoils the average and weakens only the
protection of its own people, since n + c + η modulo 2^64 is computed from n + η.

**Absent parties.** Means are over all N agreed teachers. A party that is late for a round counts with zero updates,
like a party without records in Algorithm 1; noise and accounting do not change.

The average is sent relative to the public start, which parties compute themselves. The student party therefore needs no
backbone, no network and no torch.
"""

from dataclasses import dataclass

import numpy as np

from terrine.aggregation.fixed_point import RoundIterator, SummedRounds
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event
from terrine.privacy.noise import lattice_step
from terrine.privacy.noised_sum import ClippedSum
from terrine.teachers.averaging.private import PrivateAveraging
from terrine.teachers.averaging.ttac import Average, derived_control, server_step


@dataclass(frozen=True)
class Start:
    """State from which a round starts.

    Attributes:
        average: Average relative to the public initial weights; None before the first release.
        centre: Common centre of the features, or None.
    """

    average: Average | None
    centre: np.ndarray | None


@dataclass(frozen=True)
class SharedAverages(SummedRounds):
    """Rounds of `averaging` over `teachers` of all parties, with `weights` numbers per update.

    Attributes:
        features: Length of the centre, which is released first; 0 without a centre.

    Raises:
        SettingError: Averages could overflow, updates are below the resolution of the noise's lattice, or `features`
            contradicts the settings.
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
            mechanism, length = self._mechanism(number)
            if not mechanism.fits(self.teachers):
                raise SettingError(
                    f"Averages of {self.teachers:,} teachers could overflow at noise_multiplier="
                    f"{self.averaging.noise_multiplier:g}: use more noise, or fewer teachers"
                )
            mechanism.clipped(np.zeros((0, length)))  # refuses a lattice too coarse for vectors of this length

    @property
    def first(self) -> int:
        """Number of the first round of local steps: 1 if a round for the centre precedes it, else 0."""
        return int(self.averaging.centred)

    @property
    def passes(self) -> int:  # type: ignore[override]
        """See `SummedRounds.passes`: R rounds of training use R − 1 averages."""
        return self.first + self.averaging.settings.rounds - 1

    @property
    def event(self) -> Event:
        return self.averaging.whole_event()

    def parts(self, number: int) -> list[tuple[int, float]]:
        mechanism, length = self._mechanism(number)
        return [(length, mechanism.sigma)]

    def steps(self, number: int) -> list[float]:
        return [lattice_step(self._mechanism(number)[0].sigma)]

    def broadcast_size(self, number: int) -> int:
        """See `SummedRounds.broadcast_size`: the centre, then θ relative to its start, then c."""
        return self.features * (number > 0) + 2 * self.weights * (number > self.first)

    def iterator(self) -> RoundIterator:
        return _AverageIterator(self)

    def start(self, broadcast: np.ndarray | None, number: int) -> Start:
        """Return the start of round `number`, given the broadcast of that round."""
        if broadcast is None:
            return Start(None, None)
        centre, *average = np.split(broadcast, [self.features, self.features + self.weights])
        return Start(Average(*average) if number > self.first else None, centre if self.features else None)

    def shared(self, vectors: np.ndarray, number: int) -> np.ndarray:
        """Return what a party shares in a round, int64 [length]: the clipped sum of its teachers' vectors.

        Args:
            vectors: [own teachers, length].
            number: Number of the round, from 0; centring rounds come first.

        Raises:
            InputError: The vectors have the wrong length.
        """
        mechanism, length = self._mechanism(number)
        if vectors.shape[1:] != (length,):
            raise InputError(
                f"Updates here are {vectors.shape[1]:,} numbers long, and the terms say {length:,}: nothing was "
                "shared. The backbone or its settings differ from those of the terms."
            )
        total = mechanism.total([vectors])
        most = len(vectors) * mechanism.clip / lattice_step(mechanism.sigma)
        if int(total.max()) > most or int(total.min()) < -most:
            raise InputError("A party's sum is outside the range of its teachers' updates. Nothing was shared.")
        return total

    def opened(self, total: np.ndarray, number: int) -> np.ndarray:
        """See `SummedRounds.opened`: means over all teachers."""
        return super().opened(total, number) / self.teachers

    def _mechanism(self, number: int) -> tuple[ClippedSum, int]:
        """Return the clipped sum that a round releases, and its length."""
        if number < self.first:
            return self.averaging.centre_mechanism, self.features
        return self.averaging.mechanism, self.weights


class _AverageIterator:
    """See `terrine.aggregation.fixed_point.RoundIterator`."""

    def __init__(self, shared: SharedAverages) -> None:
        self._shared, self._number = shared, 0
        self._centre = np.empty(0)
        self._average = Average(np.zeros(shared.weights), np.zeros(shared.weights))

    @property
    def broadcast(self) -> np.ndarray | None:
        """See `SharedAverages.broadcast_size`; None before the first release."""
        if not self._number:
            return None
        average = [self._average.value, self._average.control] if self._number > self._shared.first else []
        return np.concatenate([self._centre, *average])

    def receive(self, numbers: np.ndarray) -> None:
        """Process a released centre or mean update."""
        settings = self._shared.averaging.settings
        number, self._number = self._number - self._shared.first, self._number + 1
        if number < 0:
            self._centre = numbers
            return
        control = derived_control(self._average, numbers, settings, number)
        self._average = server_step(self._average, numbers, control, settings)
