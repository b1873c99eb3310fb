"""Noised accuracy: how often a published model is right on the held-out units, with Gaussian noise.

A unit is what is protected: a record, or all records of a group. Each of the n held-out units contributes one number
a in [0, 1], the share of its records that the model is right about. This share depends on the records of that unit and
on the public model, but on no other unit. Two sums are released, with independent noise N(0, σ²) on each:

    S = Σ (a − 1/2)    and    W = w · n,    w = √3 / 2

**Sensitivity.** If a unit's contents are replaced, S moves by at most 1 and W not at all. If a unit is added or
removed, S moves by at most 1/2 and W by w, and 1/4 + 3/4 = 1. So (S, W) has L2 sensitivity 1, and both together cost
as much as one Gaussian value of sensitivity 1: `GaussianEvent(1, σ)`, μ = 1/σ (Dong, Roth & Su 2022). The number of
held-out units is private, too. Because S is centred at one half, releasing that number with noise costs nothing extra.

**The published figure** is 1/2 + w·S'/W', clipped to [0, 1], where S' = S + N and W' = W + M are the released sums. If
a is the true accuracy, its error is (w·N − (a − 1/2)·M) / W'. For any a, the numerator is normal with variance at most
(w² + 1/4)·σ² = σ². So with probability 95 % or more the error is below 1.96·σ / W', which is itself released.

**Subgroups.** A column (scanner, sex, age band) has publicly declared values. A unit counts for at most one of them,
which depends only on its records. Each value has sums S and W over its units, with w = 1/2. If a unit's contents are
replaced, it may move from one value to another: S and W of both move by at most 1/2, and 4 · 1/4 = 1. If the unit keeps
its subgroup value, S moves by at most 1. If it is added or removed, S and W move by at most 1/2 each, and 1/4 + 1/4 <
1. So the sums of a column also have L2 sensitivity 1 for any number of values, and C columns in addition to the overall
accuracy cost what 1 + C values of sensitivity 1 cost. (A smaller w costs the same and is less accurate. A larger one
costs 2 · (1/4 + w²), and variance times cost, ∝ (1/4 + w²)² / w², is smallest at w = 1/2.) As above, the error of a
subgroup's figure is (w·N − (a − 1/2)·M) / W', now with a numerator of variance at most (w² + 1/4)·σ² = σ²/2: it is
below 1.96·σ / (√2·W') with probability 95 % or more.

Shares are rounded to multiples of 2^-20, and w is rounded down to one. All sums are therefore exact, lie on the lattice
of the noise (`terrine.privacy.noise`), and satisfy the bounds above to the bit. Floating-point rounding of a noisy sum
is post-processing.

    >>> accuracy = NoisedAccuracy.for_budget(epsilon=0.5, delta=1e-5)
    >>> round(accuracy.sigma, 2), accuracy.event.sensitivity
    (7.03, 1.0)
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
"""Index for a unit that belongs to none of a column's subgroups."""


@dataclass(frozen=True)
class Estimate:
    """Publishable estimate of an accuracy, computed from its noisy sums.

    Attributes:
        accuracy: In [0, 1]: the mean over units of the share of their records that the model is right about.
        plus_minus: Bound on the error caused by the noise, which holds with probability `CONFIDENCE`. The bound
            excludes the sampling error of the test set. Infinite if the released number of units is not positive.
        units: Noisy number of held-out units.
    """

    accuracy: float
    plus_minus: float
    units: float


@dataclass(frozen=True)
class NoisedAccuracy:
    """Gaussian mechanism that releases an accuracy and, optionally, its subgroups.

    Attributes:
        sigma: The noise's standard deviation, in units.
        columns: Number of values of each subgroup column.

    Raises:
        SettingError: sigma is not positive or above 2^20.
    """

    sigma: float
    columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.sigma <= _LARGEST_SIGMA:
            raise SettingError(f"A noised accuracy needs a sigma above 0 and at most 2^20 units, got {self.sigma!r}.")

    @classmethod
    def for_budget(cls, epsilon: float, delta: float, columns: Sequence[int] = ()) -> Self:
        """Return the (ε, δ)-differentially private mechanism with the least noise."""
        return cls(_HEADROOM * math.sqrt(1 + len(columns)) / mu_of(epsilon, delta), tuple(columns))

    @property
    def event(self) -> Event:
        """Privacy event of one release."""
        one = GaussianEvent(sensitivity=1.0, sigma=self.sigma)
        return RepeatedEvent(one, 1 + len(self.columns)) if self.columns else one

    def plus_minus(self, units: float, weight: float = _WEIGHT) -> float:
        """Return the error bound, at `CONFIDENCE`, of an accuracy over this number of units."""
        spread = 1.0 if weight == _WEIGHT else math.sqrt(weight**2 + 0.25)
        return _QUANTILE * self.sigma * spread / (weight * units) if units > 0 else math.inf

    def release(
        self, shares: NDArray[np.float64], noise: NoiseSource, places: Sequence[NDArray[np.int64]] = ()
    ) -> NDArray[np.float64]:
        """Return `sums` with noise, float64 [2 · (1 + values)].

        noise: Source of the noise. Other arguments and errors: see `sums`.
        """
        sums = self.sums(shares, places)
        return np.asarray(sums + noise.gaussian(len(sums), self.sigma))

    def sums(self, shares: NDArray[np.float64], places: Sequence[NDArray[np.int64]] = ()) -> NDArray[np.float64]:
        """Return S and W, followed by those of every value of every column, float64 [2 · (1 + values)]. Private.

        Args:
            shares: The share of each unit's records that the model is right about, [units], in [0, 1].
            places: For each column, the index of the value that each unit counts for, int64 [units], or `NO_SUBGROUP`.

        Raises:
            InputError: A share is outside [0, 1], or the shapes of the subgroup indices do not match columns and units.
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
        """Return the estimate of the accuracy from the output of `release` (post-processing)."""
        return self._estimate(released[:2], _WEIGHT)

    def of_subgroups(self, released: NDArray[np.float64]) -> list[list[Estimate]]:
        """Return the estimates for every value of every column from the output of `release` (post-processing)."""
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
    """Return the ε at which the accuracy over `units` units is known to within `plus_minus`."""
    return epsilon_of(_QUANTILE / (plus_minus * _WEIGHT * units), delta)
