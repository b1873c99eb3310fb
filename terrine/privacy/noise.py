"""Noise that protects privacy: where it comes from, and what its finite precision costs.

`SecureNoise` draws exactly (`terrine.privacy.discrete_sampling`) from the operating system's entropy. This noise has no
seed, so it cannot be reproduced and subtracted. `ReplayNoise` draws from a seed, for tests and ablations.
Anyone with the seed can subtract this noise, so values noised with it are not private.

Floating-point Gaussian noise leaks the value it hides through the pattern of its low bits (Mironov 2012), so both
sources draw on a lattice: whole multiples of a power of two, at least 2^44 per standard deviation. Votes are integers
and lie on that lattice too, so a count plus its noise is exact in the sense that matters: the floating-point sum is a
function of only the exact sum.

    >>> ReplayNoise(7).gaussian((2, 3), sigma=40.0).shape
    (2, 3)

**What the lattice costs.** Let h be the step, g = h/σ ≤ 2^-44, φ the density of N(0, σ²). The discrete Gaussian has
p(z) = hφ(z)/S with S = Σ hφ ≥ 1 (Poisson summation). The continuous Gaussian rounded to the lattice has r(z) =
hφ(z)·E[cosh(zT/σ²) exp(−T²/2σ²)] for T uniform on [−h/2, h/2], hence r(z) ≥ p(z)·(1 − g²/8). So the total variation
distance Σ(p − r)₊ is at most g²/8 ≤ 2^-91 for a coordinate, and at most d·2^-91 for d coordinates drawn adaptively.
Rounding is post-processing (the shifts lie on the lattice), so if the continuous mechanism is (ε, δ)-private, this one
is (ε, δ + (1 + e^ε)·d·2^-91)-private: `delta_slack`. A million counts at ε = 10 add less than 1e-17 to δ. Rényi
guarantees of the Gaussian hold without slack (Canonne, Kamath & Steinke 2020, Theorem 4), and so does the pure
guarantee of the discrete Laplace distribution, whose ratio between neighbouring lattice points is exact.
"""

import math
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from terrine.errors import SettingError
from terrine.privacy.discrete_sampling import Distribution, sample

NoiseKind = Literal["secure", "replay"]
FloatArray = NDArray[np.float64]

LATTICE_BITS = 44
_SMALLEST, _LARGEST = 2.0**-20, 2.0**30
# Doubles represent all multiples of the step up to this one exactly. 2^53 steps are at least 256 standard deviations.
_EXACT_STEPS = 2**53


@runtime_checkable
class NoiseSource(Protocol):
    """Draws noise on the lattice.

    Formal guarantees of an implementation with `kind == "secure"`:
    - every coordinate of every call is independent of all others and of everything an adversary can see;
    - `gaussian` is the discrete Gaussian and `laplace` the discrete Laplace distribution on the multiples of
      `lattice_step`, with the given parameter; no value is clipped, rounded or saturated;
    - the same noise cannot be drawn again from any state of the process.
    """

    @property
    def kind(self) -> NoiseKind:
        """`secure`, or `replay` (not private)."""

    def gaussian(self, shape: int | tuple[int, ...], sigma: float) -> FloatArray:
        """Return noise of standard deviation `sigma`, in votes, as float64 of this shape."""

    def laplace(self, shape: int | tuple[int, ...], scale: float) -> FloatArray:
        """Return Laplace noise of this scale (mean absolute value), in votes, as float64 of this shape."""

    def describe(self) -> dict[str, str | int]:
        """Return the identity of the source in a release: its kind, and a seed if there is one."""


def lattice_step(sigma: float) -> float:
    """Return the step of the lattice for noise with this standard deviation or scale: a power of two.

    Raises:
        SettingError: If sigma is outside [2^-20, 2^30] votes, so that votes and noise have no common exact lattice.
    """
    if not _SMALLEST <= sigma <= _LARGEST:
        raise SettingError(f"Noise needs a standard deviation between 2^-20 and 2^30 votes, got {sigma!r}.")
    return float(2.0 ** (math.frexp(sigma)[1] - 1 - LATTICE_BITS))


def delta_slack(coordinates: int, epsilon: float) -> float:
    """Return the most that the lattice adds to δ, for `coordinates` Gaussian values in total at ε = `epsilon`.

    The bound is derived at the top of this module.
    """
    if coordinates < 0 or not 0 <= epsilon < math.inf:
        raise SettingError(f"A slack needs coordinates ≥ 0 and a finite epsilon ≥ 0, got {coordinates} and {epsilon}.")
    log_slack = math.log1p(math.exp(-epsilon)) + epsilon - (2 * LATTICE_BITS + 3) * math.log(2)
    return coordinates * math.exp(min(log_slack, 0.0))


def check_slack(coordinates: int, epsilon: float, delta: float, name: str = "ε") -> float:
    """Return `delta_slack` after checking that it is below δ.

    Args:
        coordinates: Number of noised values.
        epsilon: ε of the guarantee.
        delta: δ of the guarantee.
        name: Name of ε in the error message.

    Raises:
        SettingError: If the lattice uses up δ.
    """
    slack = delta_slack(coordinates, epsilon)
    if not slack < delta:
        most = math.log(delta / max(coordinates, 1)) + (2 * LATTICE_BITS + 3) * math.log(2)
        raise SettingError(
            f"{name}={epsilon:g} is too large for a guarantee at δ={delta:g}: the lattice that noise is drawn on alone "
            f"adds {slack:.1g} to δ, with {coordinates:,} noised values. Ask for at most {math.floor(most)}; nothing "
            "was drawn."
        )
    return slack


class SecureNoise:
    """Noise from the operating system's entropy."""

    kind: NoiseKind = "secure"

    def gaussian(self, shape: int | tuple[int, ...], sigma: float) -> FloatArray:
        """See `NoiseSource.gaussian`."""
        return self._draw("gaussian", shape, sigma)

    def laplace(self, shape: int | tuple[int, ...], scale: float) -> FloatArray:
        """See `NoiseSource.laplace`."""
        return self._draw("laplace", shape, scale)

    def describe(self) -> dict[str, str | int]:
        """See `NoiseSource.describe`."""
        return {"kind": self.kind}

    @staticmethod
    def _draw(distribution: Distribution, shape: int | tuple[int, ...], scale: float) -> FloatArray:
        step = lattice_step(scale)
        noise = _on_lattice(sample(distribution, math.prod(np.atleast_1d(shape).tolist()), scale / step), step)
        return noise.reshape(shape)


class ReplayNoise:
    """Noise source with a seed: equal seeds give equal noise. NOT PRIVATE; for tests and ablations.

    Args:
        seed: Any whole number ≥ 0. Successive calls continue one stream of random numbers.
    """

    kind: NoiseKind = "replay"

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise SettingError(f"A seed of replayed noise is a whole number ≥ 0, got {seed}.")
        self._seed = int(seed)
        self._generator = np.random.Generator(np.random.Philox(self._seed))

    def gaussian(self, shape: int | tuple[int, ...], sigma: float) -> FloatArray:
        """See `NoiseSource.gaussian`."""
        step = lattice_step(sigma)
        return _on_lattice(np.rint(self._generator.standard_normal(shape) * (sigma / step)).astype(np.int64), step)

    def laplace(self, shape: int | tuple[int, ...], scale: float) -> FloatArray:
        """See `NoiseSource.laplace`."""
        step = lattice_step(scale)
        return _on_lattice(np.rint(self._generator.laplace(size=shape) * (scale / step)).astype(np.int64), step)

    def describe(self) -> dict[str, str | int]:
        """See `NoiseSource.describe`."""
        return {"kind": self.kind, "seed": self._seed}


def _on_lattice(steps: NDArray[np.int64], step: float) -> FloatArray:
    """Return whole steps as multiples of the step, if doubles represent them exactly."""
    if steps.size and (steps.max() > _EXACT_STEPS or steps.min() < -_EXACT_STEPS):
        raise SettingError(
            "The sampler returned noise 256 standard deviations wide, which a healthy machine does not: its entropy is "
            "broken. Nothing was released."
        )
    return np.asarray(steps, dtype=np.float64) * step
