"""The clipped mean: the mean of one vector of every unit, with Gaussian noise, of units whose number is private.

A unit is what is protected: a record, or all records of a group. Every unit's vector v is scaled down to norm 1 at
most. Two things are released, with independent noise N(0, z²) on every coordinate, where n is the number of units:

    S = Σ v    and    W = w · n,    w = √3

**What one unit moves.** Where other contents lie under its name, S moves by ‖v − v'‖ ≤ 2 at most, and W not at all.
Where the name is added or removed, S moves by at most 1 and W by w, and 1 + 3 = 2². So (S, W) has L2 sensitivity 2, and
both together cost what the clipped sum (`terrine.privacy.clipped_sum`) costs by itself: `GaussianEvent(2, z)`, μ = 2/z.
Because an exchange is the worst that may happen to S, saying how many units there are costs nothing more.

**What is published** is w · S' / W' of what was released, S' and W'. Its noise has a standard deviation of about z/n on
each coordinate; that of the number of units, z/w units, is far below what matters.

Vectors are rounded to the noise's lattice as those of a clipped sum, and so is w, downwards: all sums are exact and
keep to the bounds to the bit.

    >>> ClippedMean.for_share(0.05, epsilon=8, delta=1e-5).event
    GaussianEvent(sensitivity=2.0, sigma=...)
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import GaussianEvent
from terrine.privacy.clipped_sum import ClippedSum, Floats, Steps, noise_multiplier_for
from terrine.privacy.noise import NoiseSource, lattice_step


@dataclass(frozen=True)
class ClippedMean:
    """A mean of clipped vectors with Gaussian noise.

    Attributes:
        noise_multiplier: z, the noise's standard deviation, where a vector's largest norm is 1.

    Raises:
        SettingError: zero, negative or not finite.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        self._sum  # checks it  # noqa: B018

    @classmethod
    def for_share(cls, share: float, epsilon: float, delta: float) -> Self:
        """The mean that costs this share of a budget's μ². Raises SettingError for an impossible one."""
        return cls(noise_multiplier_for(epsilon, delta, share, 1))

    @property
    def _sum(self) -> ClippedSum:
        return ClippedSum(1.0, self.noise_multiplier)

    @property
    def event(self) -> GaussianEvent:
        """What it costs, the number of units included: sensitivity 2, noise z."""
        return self._sum.event

    def total(self, groups: Iterable[ArrayLike]) -> Steps:
        """S and W in whole steps of the noise's lattice, int64 [length + 1]: private.

        Args:
            groups: Vectors [units, length] of some units each; every unit is in one group.

        Raises:
            InputError: no vector at all.
            SettingError: more units than add up exactly.
        """
        weight = math.floor(math.sqrt(3) / lattice_step(self._sum.sigma))
        total: Steps | None = None
        units = 0
        for group in groups:
            steps = self._sum.steps(group)
            units += len(steps)
            if not self._sum.fits(2 * units):
                raise SettingError(f"{units:,} units do not fit an exact sum at so little noise. Release less exactly.")
            if total is None:
                total = np.zeros(steps.shape[1] + 1, dtype=np.int64)
            total[:-1] += steps.sum(axis=0)
            total[-1] += weight * len(steps)
        if total is None:
            raise InputError("There is no vector to take the mean of.")
        return total

    def release(self, groups: Iterable[ArrayLike], noise: NoiseSource) -> Floats:
        """S and W with noise, float64 [length + 1]; arguments and errors as of `total`."""
        return self._sum.noised(self.total(groups), noise)

    def mean(self, released: Floats) -> tuple[Floats, float]:
        """The mean vector, and about the standard deviation of its noise: a function of what was released."""
        units = max(1.0, float(released[-1]) / math.sqrt(3))
        return np.asarray(released[:-1] / units), self.noise_multiplier / units
