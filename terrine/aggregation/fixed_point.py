"""Moments in fixed point: what parties share of their own sums, with which noise, and what is read off the total.

All numbers are whole multiples of one step, that of the finest lattice their noise is drawn on; sums of records lie on
it (`terrine.aggregation.records`). So parties' sums, and the noise, add up as whole numbers to what `noised_moments`
has with the same noise in one place, to the bit.

**Nothing wraps around.** Shares are modulo 2^64. A unit moves no number by more than 1, so N units give at most N/step;
the noise is at most 2^53 steps of its own (`terrine.privacy.noise` refuses more), which is 2^54 of these. With
N ≤ (2^63 − 2^55) · step, at σ standard deviations at least 2^18 σ units less a five-hundredth, totals stay within 64
bits. Terms that allow more are refused, and so is a party's sum that is larger than the units it may have could make
it. Whoever shares something else only spoils the total: n + c + η modulo 2^64 is computed from n + η.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.records import STEP, Floats, Steps, fine_step
from terrine.aggregation.sums import moments_from, noise_on_moments
from terrine.errors import InputError
from terrine.privacy.noise import NoiseSource

_LARGEST = 2**63 - 2**55


@dataclass(frozen=True)
class FixedPoint:
    """Moments of vectors with `length` coordinates by `classes`, with noise `sigma`, as whole numbers.

    Raises:
        SettingError: noise on too coarse a lattice (`fine_step`), where the step is asked for.
    """

    length: int
    classes: int
    sigma: float

    @property
    def parts(self) -> list[tuple[int, float]]:
        """See `noise_on_moments`."""
        return noise_on_moments(self.length, self.classes, self.sigma)

    @property
    def numbers(self) -> int:
        """How many numbers the moments are."""
        return sum(count for count, _ in self.parts)

    @property
    def step(self) -> float:
        """What all numbers are whole multiples of."""
        return min(fine_step(sigma) for _, sigma in self.parts)

    @property
    def most_units(self) -> int:
        """Of how many units of all parties sums cannot wrap around."""
        return int(_LARGEST * self.step)

    def shared(self, sums: NDArray[Any], units: int) -> Steps:
        """Return what a party shares: its sums, in steps of `records.STEP`, as whole numbers int64 [numbers].

        Raises InputError for sums that so many units cannot have.
        """
        if sums.shape != (self.numbers,) or sums.dtype.kind != "i":
            raise InputError(f"Sums are whole numbers [{self.numbers}], got {sums.dtype} of shape {list(sums.shape)}.")
        most = round(units / STEP)
        if int(sums.max()) > most or int(sums.min()) < -most:
            raise InputError(
                f"A sum over a party's records lies outside what {units:,} of them can have, which is as many as the "
                "terms allow it. Nothing was shared: agree on terms in which it may have more."
            )
        return np.asarray(sums, dtype=np.int64) * round(STEP / self.step)

    def noise(self, source: NoiseSource) -> Steps:
        """Draw the noise on the total, int64 [numbers], in the order of `noised_moments`."""
        step = self.step
        drawn = [np.rint(source.gaussian((count,), sigma) / step) for count, sigma in self.parts]
        return np.concatenate(drawn).astype(np.int64)

    def released(self, total: Steps) -> dict[str, Floats]:
        """Return the arrays of `Moments.release` from the total with its noise, int64 [numbers]."""
        second, labels = moments_from(total.astype(np.float64) * self.step, self.length)
        return {"second": second, "labels": labels}
