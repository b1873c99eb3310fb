"""Clipped sum: one vector per owner, clipped, added up exactly, and released with Gaussian noise.

Private teacher averaging and DP-FedAvg release nothing else. Every owner's vector is scaled down to a norm of at most S
(`clip`), and the sum is released with noise of standard deviation zS on every coordinate. Replacing one record, or all
records of an owner, replaces the vector of one owner, so the sum moves by at most 2S: the release is μ-GDP with
μ = 2/z, for any vectors, any number of them and any length.

Guarantees:
- the bound 2S holds in finite precision: vectors are rounded to the lattice that the noise is drawn on
  (`terrine.privacy.noise`), added up as 64-bit integers, and clipped slightly below S to leave room for the rounding;
- a vector with a non-finite number (a training that diverged) counts as zero, so it does not affect the others;
- the sum does not depend on the order of the owners, nor on how they are grouped.

    >>> mechanism = ClippedSum(clip=1.0, noise_multiplier=4.0)
    >>> mechanism.event                          # μ = 2/4
    GaussianEvent(sensitivity=2.0, sigma=4.0)
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import GaussianEvent
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.noise import NoiseSource, lattice_step

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

# Exceeds the rounding error of the norm of a vector of any length and of scaling by it; too small to matter.
_ROUNDING = 1e-9
# Rounding z up by this much keeps the sum of the costs below its share of the budget, in any order of summation.
_HEADROOM = 1 + 1e-9
# Largest number of lattice steps per coordinate for the clipped sum and for the noise, so that their sum fits int64.
_MOST_STEPS = 2.0**62


@dataclass(frozen=True)
class ClippedSum:
    """A sum of clipped vectors with Gaussian noise.

    Attributes:
        clip: S, the largest norm of a vector.
        noise_multiplier: z, the noise's standard deviation in units of S.

    Raises:
        SettingError: either is zero, negative or not finite: nothing is private without a bound or without noise.
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        for name, value in (("clip", self.clip), ("noise_multiplier", self.noise_multiplier)):
            if not 0 < value < math.inf:
                raise SettingError(
                    f"A clipped sum needs a {name} greater than 0, got {value!r}: without it nothing is private."
                )

    @property
    def sigma(self) -> float:
        """The noise's standard deviation on every coordinate of the sum."""
        return self.clip * self.noise_multiplier

    @property
    def event(self) -> GaussianEvent:
        """Privacy event of one release: sensitivity 2S, noise zS."""
        return GaussianEvent(sensitivity=2 * self.clip, sigma=self.sigma)

    def clipped(self, vectors: ArrayLike) -> Floats:
        """Clip the vectors [owners, length] to norm at most S; non-finite ones become zero."""
        values = _matrix(vectors)
        values = np.where(np.isfinite(values).all(axis=1, keepdims=True), values, 0.0)
        # Scale before squaring, so that no norm overflows.
        largest = np.abs(values).max(axis=1, initial=0.0, keepdims=True)
        norms = largest * np.linalg.norm(values / np.where(largest > 0, largest, 1.0), axis=1, keepdims=True)
        factor = np.minimum(1.0, self._bound(values.shape[1]) / np.where(norms > 0, norms, 1.0))
        return np.asarray(values * factor)

    def steps(self, vectors: ArrayLike) -> Steps:
        """Return the clipped vectors in whole steps of the noise's lattice, int64 [owners, length], for exact sums."""
        return np.asarray(np.rint(self.clipped(vectors) / lattice_step(self.sigma)).astype(np.int64))

    def fits(self, owners: int) -> bool:
        """Return whether the steps of `owners` owners plus the noise have an exact sum in 64 bits."""
        return owners * self.clip / lattice_step(self.sigma) < _MOST_STEPS

    def noised(self, total: Steps, noise: NoiseSource) -> Floats:
        """Return a sum of all owners' steps, of any shape, with noise; see `add_noise`."""
        return add_noise(total, self.sigma, noise, lattice_step(self.sigma))

    def release(self, groups: Iterable[ArrayLike], noise: NoiseSource) -> Floats:
        """Return the noisy sum of all clipped vectors, [length]; groups and errors as for `total`."""
        return self.noised(self.total(groups), noise)

    def total(self, groups: Iterable[ArrayLike]) -> Steps:
        """Return the sum of all clipped vectors in whole steps of the noise's lattice, int64 [length]: private.

        Args:
            groups: Vectors [owners, length], in groups of owners; every owner is in exactly one group.

        Raises:
            InputError: there are no vectors, or their lengths differ.
        """
        total: Steps | None = None
        owners = 0
        for group in groups:
            values = _matrix(group)
            if total is None:
                total = np.zeros(values.shape[1], dtype=np.int64)
            if len(total) != values.shape[1]:
                raise InputError(
                    f"Vectors of {len(total)} and of {values.shape[1]} numbers cannot be added up: every owner gives "
                    "one of the same length."
                )
            owners += len(values)
            if not self.fits(owners):
                raise SettingError(
                    f"{owners:,} owners with a noise_multiplier of {self.noise_multiplier:g} do not fit an exact sum: "
                    "use more noise, or fewer owners."
                )
            total += self.steps(values).sum(axis=0)
        if total is None or not owners or not len(total):
            raise InputError("The sum needs at least one vector.")
        return total

    def _bound(self, length: int) -> float:
        """Clipping norm, below S by the largest error of rounding every coordinate to the lattice."""
        bound = self.clip * (1 - _ROUNDING) - math.sqrt(length) * lattice_step(self.sigma) / 2
        if not bound > 0:
            raise SettingError(
                f"A noise_multiplier of {self.noise_multiplier:g} drowns vectors of {length:,} numbers in the lattice "
                "that noise is drawn on. Use less noise, or a larger budget."
            )
        return bound


@dataclass(frozen=True)
class ClippedMean:
    """Mean of one clipped vector per unit, with Gaussian noise; the number of units is private.

    A unit is what is protected: a record, or all records of a group. Every unit's vector v is scaled down to a norm of
    at most 1. Two sums are released, with independent noise N(0, z²) on every coordinate; n is the number of units:

        S = Σ v    and    W = w · n,    w = √3

    **Sensitivity.** If a unit's contents are replaced, S moves by ‖v − v'‖ ≤ 2, and W not at all. If it is
    added or removed, S moves by at most 1 and W by w, and 1 + 3 = 2². So (S, W) has L2 sensitivity 2, and both together
    cost as much as a clipped sum: `GaussianEvent(2, z)`, μ = 2/z. Releasing the number of units costs nothing extra,
    because a replacement is the worst case for S.

    **The published mean** is w · S' / W', computed from the released S' and W'. The noise of the mean has a standard
    deviation of about z/n on each coordinate; the noise on the number of units, z/w units, is negligible. w is rounded
    down to the noise's lattice, so all sums are exact and satisfy the bounds to the bit.

    >>> ClippedMean.for_share(0.05, epsilon=8, delta=1e-5).event
    GaussianEvent(sensitivity=2.0, sigma=...)

    Attributes:
        noise_multiplier: z, the noise's standard deviation for vectors of norm at most 1.

    Raises:
        SettingError: zero, negative or not finite.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        self._sum  # checks it  # noqa: B018

    @classmethod
    def for_share(cls, share: float, epsilon: float, delta: float) -> Self:
        """Return the mechanism that costs this share of a budget's μ².

        Raises SettingError for an invalid share or budget.
        """
        return cls(noise_multiplier_for(epsilon, delta, share, 1))

    @property
    def _sum(self) -> ClippedSum:
        return ClippedSum(1.0, self.noise_multiplier)

    @property
    def event(self) -> GaussianEvent:
        """Privacy event of one release, including the number of units: sensitivity 2, noise z."""
        return self._sum.event

    def total(self, groups: Iterable[ArrayLike]) -> Steps:
        """S and W in whole steps of the noise's lattice, int64 [length + 1]: private.

        Args:
            groups: Vectors [units, length], in groups of units; every unit is in exactly one group.

        Raises:
            InputError: there are no vectors.
            SettingError: too many units for an exact sum.
        """
        weight = math.floor(math.sqrt(3) / lattice_step(self._sum.sigma))
        total: Steps | None = None
        units = 0
        for group in groups:
            steps = self._sum.steps(group)
            units += len(steps)
            if not self._sum.fits(2 * units):
                raise SettingError(f"{units:,} units do not fit an exact sum at so little noise. Use more noise.")
            if total is None:
                total = np.zeros(steps.shape[1] + 1, dtype=np.int64)
            total[:-1] += steps.sum(axis=0)
            total[-1] += weight * len(steps)
        if total is None:
            raise InputError("The mean needs at least one vector.")
        return total

    def release(self, groups: Iterable[ArrayLike], noise: NoiseSource) -> Floats:
        """S and W with noise, float64 [length + 1]; arguments and errors as in `total`."""
        return self._sum.noised(self.total(groups), noise)

    def mean(self, released: Floats) -> tuple[Floats, float]:
        """Return the mean vector and the approximate standard deviation of its noise (post-processing)."""
        units = max(1.0, float(released[-1]) / math.sqrt(3))
        return np.asarray(released[:-1] / units), self.noise_multiplier / units


def add_noise(total: Steps, sigma: float, noise: NoiseSource, unit: float) -> Floats:
    """Return a sum with Gaussian noise on every coordinate, float64.

    The sum and the noise lie on one lattice, and their exact sum is a sum of whole numbers. Floating point only rounds
    the result, which is post-processing.

    Args:
        total: The sum of clipped vectors, of any shape, in whole multiples of `unit`. The noised sum fits 64 bits if
            `unit` is the step of the noise's lattice, see `ClippedSum.fits`.
        sigma: Standard deviation of the noise.
        noise: Source of the noise.
        unit: Step of the lattice, a power of two.

    Raises:
        SettingError: the lattice of the noise is coarser than `unit`.
    """
    step = common_step(sigma, unit)
    drawn = noise_in_steps(noise, total.shape, sigma, step)
    exact = total + drawn if step == unit else total.astype(object) * round(unit / step) + drawn.astype(object)
    return np.asarray(exact.astype(np.float64) * step)


def noise_in_steps(noise: NoiseSource, shape: tuple[int, ...], sigma: float, step: float) -> Steps:
    """Draw Gaussian noise as whole multiples of `step`, int64; its lattice lies on that of `step`."""
    return np.asarray(np.rint(noise.gaussian(shape, sigma) / step).astype(np.int64))


def common_step(sigma: float, unit: float) -> float:
    """Return the step of the noise's lattice, which contains all multiples of `unit`.

    Raises:
        SettingError: the lattice is coarser than `unit`.
    """
    step = lattice_step(sigma)
    if step > unit:
        raise SettingError(
            f"Noise of standard deviation {sigma:g} is drawn on a lattice too coarse for this sum. Use a larger budget."
        )
    return step


def noise_multiplier_for(epsilon: float, delta: float, share: float, releases: int) -> float:
    """Return the smallest z at which `releases` clipped sums cost the `share` of the budget's μ².

    The cost is exactly 4 · releases / z²; together with the rest, (1 − share) · μ², it composes to the whole budget.

    Args:
        epsilon: ε of the whole budget.
        delta: δ of the whole budget.
        share: Share of μ² (not of ε) to spend, in (0, 1]; 1 spends the whole budget.
        releases: Number of released vectors, ≥ 1.

    Raises:
        SettingError: an argument out of range.
    """
    if not 0 < share <= 1:
        raise SettingError(f"A share of a budget lies above 0 and at most at 1, got {share!r}.")
    if isinstance(releases, bool) or not isinstance(releases, int) or releases < 1:
        raise SettingError(f"The number of releases must be a whole number of at least 1, got {releases!r}.")
    if not epsilon > 0:
        raise SettingError(f"epsilon must be greater than 0, got {epsilon!r}.")
    return 2 * math.sqrt(releases / share) / mu_of(epsilon, delta) * _HEADROOM


def _matrix(vectors: ArrayLike) -> Floats:
    values = np.asarray(vectors, dtype=np.float64)
    if values.ndim != 2:
        raise InputError(f"A clipped sum takes vectors [owners, length], got an array of shape {list(values.shape)}.")
    return values
