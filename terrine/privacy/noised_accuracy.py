"""The noised accuracy: how often a published model is right about the units that were held out, with Gaussian noise.

A unit is what is protected: a record, or all records of a group. Each of the n units that were held out says one number
a in [0, 1], the share of its records that the model is right about. It hangs on the unit's own records and on the
model, which is public, and on no other unit. Two sums are released, with independent noise N(0, σ²) on each:

    S = Σ (a − 1/2)    and    W = w · n,    w = √3 / 2

**What one unit moves.** Where other contents lie under its name, S moves by at most 1 and W not at all. Where the name
is added or removed, S moves by at most 1/2 and W by w, and 1/4 + 3/4 = 1. So (S, W) has L2 sensitivity 1, and both
together cost what one Gaussian value of sensitivity 1 costs: `GaussianEvent(1, σ)`, μ = 1/σ (Dong, Roth & Su 2022). The
number of units is as private as the rest; because S counts from one half, saying it with noise costs nothing more.

**What is published** is 1/2 + w·S'/W', within [0, 1], where S' = S + N and W' = W + M are what was released. With a the
accuracy, it is wrong by (w·N − (a − 1/2)·M) / W'. The numerator is normal with variance at most (w² + 1/4)·σ² = σ²,
whatever a is. So with probability 95 % or more it is wrong by less than 1.96·σ / W', which is itself released.

**Subgroups.** A column (scanner, sex, age band) has values that were declared in public. A unit counts for one of them,
or for none, which hangs on its own records alone. Each value has sums S and W of its own units, with w = 1/2. Where
other contents lie under a unit's name, it may leave one value for another: S and W of both move by at most 1/2, and
4 · 1/4 = 1. Where it stays, S moves by at most 1. Where its name is added or removed, 1/4 + 1/4. So the sums of a
column have L2 sensitivity 1, too, whatever the number of its values, and C columns beside the one accuracy cost what
1 + C values of sensitivity 1 cost. (A smaller w costs as much and says less; a larger one costs 2 · (1/4 + w²), and the
error times that price, (1/4 + w²)² / w², is least at w = 1/2.) As above a subgroup's figure is wrong by
(w·N − (a − 1/2)·M) / W', now with a numerator of variance at most (w² + 1/4)·σ² = σ²/2: by less than 1.96·σ / (√2·W')
with probability 95 % or more.

Shares are rounded to multiples of 2^-20, and so is w, downwards: all sums are exact, lie on the lattice of the noise
(`terrine.privacy.noise`), and keep to the bounds above to the bit. What floating point makes of a sum with noise is
post-processing.

    >>> accuracy = NoisedAccuracy.for_budget(epsilon=0.5, delta=1e-5)
    >>> round(accuracy.sigma, 2), accuracy.event.sensitivity
    (7.01, 1.0)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event, GaussianEvent, RepeatedEvent
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of
from terrine.privacy.noise import NoiseSource

CONFIDENCE = 0.95
_QUANTILE = 1.959963984540054
# Rounding σ up by this much keeps its cost below the budget.
_HEADROOM = 1 + 1e-9
# The noise of a larger σ has a coarser lattice than the shares.
_BITS, _LARGEST_SIGMA = 20, 2.0**20
_WEIGHT = math.floor(math.sqrt(0.75) * 2**_BITS) / 2**_BITS
_OF_SUBGROUP = 0.5

NO_SUBGROUP = -1
"""The number of a unit that counts for none of a column's values."""


@dataclass(frozen=True)
class Estimate:
    """What may be published of a noised accuracy.

    Attributes:
        accuracy: In [0, 1]: the mean over units of the share of their records that the model is right about.
        plus_minus: It is wrong by less with probability `CONFIDENCE`, because of the noise: what another test set would
            have said is another matter. Infinite where noise is all there is.
        units: About how many units were held out.
    """

    accuracy: float
    plus_minus: float
    units: float


@dataclass(frozen=True)
class NoisedAccuracy:
    """The mechanism.

    Attributes:
        sigma: The noise's standard deviation, in units.
        columns: How many values each column of subgroups has.

    Raises:
        SettingError: noise that is none, or drowns anything.
    """

    sigma: float
    columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.sigma <= _LARGEST_SIGMA:
            raise SettingError(f"A noised accuracy needs a sigma above 0 and at most 2^20 units, got {self.sigma!r}.")

    @classmethod
    def for_budget(cls, epsilon: float, delta: float, columns: Sequence[int] = ()) -> Self:
        """Return the one with the least noise that is (ε, δ)-differentially private."""
        return cls(_HEADROOM * math.sqrt(1 + len(columns)) / mu_of(epsilon, delta), tuple(columns))

    @property
    def event(self) -> Event:
        """What one release costs."""
        one = GaussianEvent(sensitivity=1.0, sigma=self.sigma)
        return RepeatedEvent(one, 1 + len(self.columns)) if self.columns else one

    def plus_minus(self, units: float, weight: float = _WEIGHT) -> float:
        """Return how wrong it is at most, with probability `CONFIDENCE`, about so many units."""
        spread = 1.0 if weight == _WEIGHT else math.sqrt(weight**2 + 0.25)
        return _QUANTILE * self.sigma * spread / (weight * units) if units > 0 else math.inf

    def release(
        self, shares: NDArray[np.float64], noise: NoiseSource, places: Sequence[NDArray[np.int64]] = ()
    ) -> NDArray[np.float64]:
        """Return `sums` with noise, float64 [2 · (1 + values)].

        noise: where it comes from. The rest, and errors, are those of `sums`.
        """
        sums = self.sums(shares, places)
        return np.asarray(sums + noise.gaussian(len(sums), self.sigma))

    def sums(self, shares: NDArray[np.float64], places: Sequence[NDArray[np.int64]] = ()) -> NDArray[np.float64]:
        """Return S and W, and after them those of every value of every column, float64 [2 · (1 + values)]. Private.

        Args:
            shares: The share of each unit's records that the model is right about, [units], in [0, 1].
            places: For each column the number of the value that each unit counts for, int64 [units], or `NO_SUBGROUP`.

        Raises:
            InputError: shares or places that are none.
        """
        if shares.ndim != 1 or not ((shares >= 0) & (shares <= 1)).all():
            raise InputError(f"Shares lie in [0, 1], one for each unit; got an array of shape {list(shares.shape)}.")
        rounded = np.rint(shares * 2**_BITS).astype(np.int64) - 2 ** (_BITS - 1)
        sums = [rounded.sum() / 2**_BITS, len(shares) * _WEIGHT]
        if len(places) != len(self.columns) or any(place.shape != shares.shape for place in places):
            raise InputError(f"{len(self.columns)} columns of subgroups need a number for each unit in each of them.")
        for values, place in zip(self.columns, places, strict=True):
            for value in range(values):
                own = rounded[place == value]
                sums += [own.sum() / 2**_BITS, len(own) * _OF_SUBGROUP]
        return np.array(sums)

    def estimate(self, released: NDArray[np.float64]) -> Estimate:
        """Return what `release` says about the accuracy: post-processing."""
        return self._estimate(released[:2], _WEIGHT)

    def of_subgroups(self, released: NDArray[np.float64]) -> list[list[Estimate]]:
        """Return what `release` says about every value of every column: post-processing."""
        pairs = iter(released[2:].reshape(-1, 2))
        return [[self._estimate(next(pairs), _OF_SUBGROUP) for _ in range(values)] for values in self.columns]

    def _estimate(self, sums: NDArray[np.float64], weight: float) -> Estimate:
        centred, weighed = map(float, sums)
        units = weighed / weight
        accuracy = 0.5 + centred / units if units > 0 else 0.5
        return Estimate(min(max(accuracy, 0.0), 1.0), self.plus_minus(units, weight), max(units, 0.0))


def shares_of_units(right: NDArray[np.bool_ | np.float64], units: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return for each unit the share of its records that are right, float64 [units].

    right: bool [records], or how right each is, from 0 to 1. units: int64 [records], which records belong together.
    """
    _, own = np.unique(units, return_inverse=True)
    return np.asarray(np.bincount(own, weights=right) / np.bincount(own), dtype=np.float64)


def epsilon_for(plus_minus: float, units: int, delta: float) -> float:
    """Return the ε at which the accuracy of so many units is known to within `plus_minus`."""
    return epsilon_of(_QUANTILE / (plus_minus * _WEIGHT * units), delta)
