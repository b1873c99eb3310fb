"""Privacy loss distributions: an upper bound on ε for Laplace noise and randomised response, alone or with Gaussians.

A mechanism is *dominated* by a pair of distributions (P, Q) when its hockey-stick divergence between any two neighbours
is at most that of the pair, δ(ε) = E_P[(1 − e^(ε − L))₊] with the privacy loss L = log(P/Q), at every real ε. The
product of the pairs of all steps dominates an adaptive composition (Zhu, Dong & Wang 2022, Theorem 10), so losses add
up as independent random numbers do. Most pairs used here are their own mirror images, so one direction covers both:

- Laplace noise with L1 sensitivity s, in units of its scale: one coordinate shifted by s. Splitting a shift over two
  coordinates, a + b = s, gives for s − 2t = ε, 0 ≤ t ≤ s, δ = 1 − e^−t (1 + min(t, a, b, s − t)/2), never above the
  1 − e^−t of one coordinate; more coordinates follow by induction, smaller shifts because t shrinks with them. Noise
  on a lattice has the same δ where t is a multiple of the lattice.
- k-ary randomised response between two categories: two answers with losses ε and −ε, and k − 2 answers with loss 0.
  An answer that is uniform is an average of these, and the divergence is convex.
- Gaussian mechanisms: all together are exactly one Gaussian, by adding μ² (`gaussian`).
- Gaussian noise on a Poisson sample: P = (1 − q) N(0, σ²) + q N(plus, σ²), Q = (1 − q) N(0, σ²) + q N(−minus, σ²).
  Let a unit's contributions be vectors f and g, P_f = (1 − q) N(0, σ²I) + q N(f, σ²I). For a unit that is added or
  removed (g = 0), f and 0 are images of plus and 0 under one linear map and further noise (Zhu, Dong &
  Wang 2022, Theorem 11). For one that is replaced, let α ≥ 1 (mirrored below 1). The best test for P_f against α P_g
  accepts A = {x : α q N_g(x) + (α − 1)(1 − q) N_0(x) ≤ q N_f(x)}, i.e. where c₁ e^((g − f)x/σ²) + c₂ e^(−fx/σ²) ≤ 1 for
  some c₁, c₂ ≥ 0. So A + u ⊂ A if fu ≥ 0 and (f − g)u ≥ 0: moving g by −u or f by u makes A, and hence the best test,
  no worse. Rotating g away from f is such a move, at every angle. Once f and g are opposite, so is lengthening either
  one. The worst case is therefore f = −g with the largest norm. If a sample of fixed size replaces one unit by another,
  the same holds for contributions relative to the replacing unit, which are at most twice as long. The two directions
  differ if plus ≠ minus: each is composed separately, and the larger ε counts.

Losses are rounded to a lattice of step h so that the curve can only rise: a mass at a loss between two points is split
between them such that its total under P and under Q is unchanged. As a function of e^ε, δ is convex, and the new curve
is its chord between lattice points (Doroshenko et al. 2022, "Connect the dots").

Masses of repeated steps are convolved by FFT after tilting by e^(tL), at the t where the Rényi bound at δ is smallest,
so that rounding errors are relative to that bound and not to 1. Masses that sum to η under the tilt contribute at most
η δ_R(ε) to δ(ε), where δ_R(ε) = e^(K(t) − tε) t^t/(1 + t)^(1 + t) is the Rényi bound, K the cumulant of all losses. In
this way the FFT's rounding error and the mass outside its window (by Chernoff) are bounded and added to δ.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # loads submodules on first use: reading settings needs none of them
from numpy.typing import NDArray

from terrine.errors import SettingError
from terrine.privacy.accounting.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    RandomisedResponseEvent,
    SampledGaussianEvent,
    UnsupportedEventError,
    counts,
)
from terrine.privacy.accounting.gaussian import delta_of, epsilon_of, mu_squared

Floats = NDArray[np.float64]

# Lattice points per standard deviation of a step's loss; the error falls with the square of this number.
_RESOLUTION = 32
_FINEST, _COARSEST = 2.0**-14, 0.02
# The longest FFT: beyond it the lattice is made coarser, which still gives an upper bound.
_POINTS = 1 << 18
# Probability under the tilt that may fall outside the window, at either end.
_TAIL = math.log(1e-12)
# Rounding of an FFT, relative to its input's norm, per doubling of its length (Higham 2002, section 24.1: 7 units).
_FFT_ROUNDING = 32 * 2.0**-53
# Below this μ the formula of the Gaussian curve loses digits, so this larger μ is used as an upper bound.
_SMALLEST_MU = 1e-5
# Relative rounding of one evaluation of the curve.
_MARGIN = 1e-8
# Gaussian noise beyond this many standard deviations has negligible mass, which is added to δ.
_BEYOND = 14.0
# Above this shift, in standard deviations, sampling is ignored.
_LARGEST_SHIFT = 10.0
# Growth of the distance between lattice points in the tail of a sampled Gaussian's loss.
_GROWTH = 0.01
# Tilts to try: from a negligible tilt to one that leaves only the largest loss.
_TILTS, _LOW, _HIGH = 81, 1e-3, 1e5


@dataclass(frozen=True)
class _Step:
    """Privacy losses of one mechanism on the lattice, and how often it runs.

    Attributes:
        count: Number of runs.
        index: Lattice indices of the losses, increasing.
        masses: Probabilities of these losses under P.
    """

    count: int
    index: NDArray[np.int64]
    masses: Floats

    def losses(self, h: float) -> Floats:
        return h * self.index.astype(np.float64)

    def cumulants(self, tilts: Floats, h: float) -> Floats:
        """Return log E[e^(tL)] of one run at every t."""
        held = self.masses > 0
        log_masses, losses = np.log(self.masses[held]), self.losses(h)[held]
        exponents = log_masses + np.multiply.outer(tilts, losses)
        largest = exponents.max(axis=1)
        logarithms: Floats = largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1))
        return logarithms


@lru_cache(maxsize=4096)
def loss_epsilon(event: Event, delta: float) -> float:
    """Bound ε at `delta` from above for a composition of Laplace, randomised-response and Gaussian mechanisms.

    Raises:
        UnsupportedEventError: `event` contains an unsupported part, or is repeated too often for the lattice of losses.
        SettingError: δ outside (0, 1).
    """
    if not 0 < delta < 1:
        raise SettingError(f"delta must lie strictly between 0 and 1, got {delta!r}.")
    mu, others = _parts(event)
    if not others:
        return epsilon_of(mu, delta)
    return max(_Losses(mu, each, delta).epsilon() for each in _directions(others))


def loss_delta(event: Event, epsilon: float, *, near: float = 1e-6) -> float:
    """Bound δ at `epsilon` ≥ 0 from above for the same compositions; most accurate for a δ close to `near`."""
    if not epsilon >= 0:
        raise SettingError(f"epsilon must be a number ≥ 0, got {epsilon!r}.")
    mu, others = _parts(event)
    if not others:
        return delta_of(mu, epsilon)
    return min(1.0, max(_Losses(mu, each, near).delta_at(epsilon) for each in _directions(others)))


def _directions(others: dict[Event, int]) -> list[dict[Event, int]]:
    """Return the mechanisms, followed by the same with neighbours exchanged unless the two are equal."""
    mirrored = {part.mirrored if isinstance(part, SampledGaussianEvent) else part: n for part, n in others.items()}
    return [others] if mirrored == others else [others, mirrored]


def _parts(event: Event) -> tuple[float, dict[Event, int]]:
    """Return μ of all Gaussian mechanisms, and the count of each other mechanism with a nonzero cost."""
    square: list[float] = []
    others: dict[Event, int] = {}
    for part, count in counts(event).items():
        match part:
            case GaussianEvent():
                square.append(count * mu_squared(part))
            case SampledGaussianEvent() if part.rate == 1 or part.plus + part.minus > _LARGEST_SHIFT * part.sigma:
                square.append(count * ((part.plus + part.minus) / part.sigma) ** 2)  # never less than with sampling
            case LaplaceEvent() | RandomisedResponseEvent() | SampledGaussianEvent():
                if _largest_loss(part) > 0:
                    others[part] = count
            case _:
                raise UnsupportedEventError(f"No privacy loss distribution is known for a {type(part).__name__}.")
    return math.sqrt(math.fsum(square)), others


def _largest_loss(part: Event) -> float:
    match part:
        case LaplaceEvent():
            return part.sensitivity / part.scale
        case RandomisedResponseEvent():
            return part.epsilon
        case SampledGaussianEvent():  # up to a negligible mass
            return float(np.max(np.abs(sampled_loss(part, _ends(part)))))
    raise UnsupportedEventError(f"No privacy loss distribution is known for a {type(part).__name__}.")


def _spread(part: Event) -> float:
    """Return an estimate of the standard deviation of one loss, which the lattice must resolve."""
    if isinstance(part, SampledGaussianEvent):
        return _sampled_spread(part)
    top = _largest_loss(part)
    return min(top, 2.0) if isinstance(part, LaplaceEvent) else top / math.cosh(min(top, 700.0) / 2)


class _Losses:
    """Distribution of the summed losses, tilted for one δ; bounds hold at every other δ."""

    def __init__(self, mu: float, others: dict[Event, int], delta: float) -> None:
        self.delta = delta
        self.mu = max(mu, _SMALLEST_MU) if mu else 0.0
        self.top = max(map(_largest_loss, others))
        # About the largest possible standard deviation of the sum of the other mechanisms' losses.
        sampled = [part for part in others if isinstance(part, SampledGaussianEvent)]
        self.root = math.sqrt(
            math.fsum(n * (_spread if part in sampled else _largest_loss)(part) ** 2 for part, n in others.items())
        )
        self.lost = sum(others[part] for part in sampled) * float(scipy.special.ndtr(-_BEYOND))
        if self.lost >= delta:
            raise UnsupportedEventError(
                f"Losses of {sum(others.values())} sampled steps are too coarse for δ = {delta:g}."
            )
        # Rounding adds at most h²/4 to the variance of a loss.
        variance = mu**2 + math.fsum(count * _spread(part) ** 2 for part, count in others.items())
        step = min(_COARSEST, math.sqrt(variance / sum(others.values())) / _RESOLUTION)
        if len(others) == 1 and isinstance(next(iter(others)), RandomisedResponseEvent):
            step = math.inf  # −ε, 0 and ε are a lattice already
        while True:
            # The largest loss of the mechanism that adds most to the sum lies just below a lattice point. Losses of
            # sampled Gaussians lie on no lattice.
            bounded = [part for part in others if part not in sampled]
            most = _largest_loss(max(bounded or others, key=lambda part: others[part] * _largest_loss(part) ** 2))
            self.h = max(step, most * _FINEST) if bounded else step
            if not sampled:
                self.h = most / max(1, math.ceil(most / self.h * (1 - 1e-12))) * (1 + 1e-15)
            self.steps = [_step(part, count, self.h) for part, count in others.items()]
            self._choose_tilt()
            first, last = self._window()
            if last - first < _POINTS:
                break
            if step > most:
                raise UnsupportedEventError(
                    "The event is repeated too often: the lattice of privacy losses would be too long."
                )
            step = self.h * max(2.0, (last - first) / _POINTS)
        self._convolve(first, last)

    def _cumulants(self, tilts: Floats) -> Floats:
        return np.asarray(sum(step.count * step.cumulants(tilts, self.h) for step in self.steps))

    def _choose_tilt(self) -> None:
        highest = min(_HIGH / self.top, _HIGH / self.mu) if self.mu else _HIGH / self.top
        grid = np.geomspace(_LOW / math.hypot(self.mu, self.root), highest, _TILTS)
        cumulants = self._cumulants(grid)
        rdp = cumulants + self.mu**2 * (grid + grid**2) / 2
        epsilons = (rdp - math.log(self.delta) + grid * np.log(grid) - (1 + grid) * np.log1p(grid)) / grid
        best = int(np.argmin(epsilons))
        self.tilt, self.discrete, self.total = float(grid[best]), float(cumulants[best]), float(rdp[best])
        self.start = max(0.0, float(epsilons[best]))

    def _window(self) -> tuple[int, int]:
        """Return the first and last lattice index of the window outside which tilted losses have negligible mass."""
        ends = []
        for sign in (-1.0, 1.0):
            moves = np.geomspace(_LOW / self.root, _HIGH / self.top, _TILTS)
            rise = self._cumulants(self.tilt + sign * moves) - self.discrete
            ends.append(float(np.min((rise - _TAIL) / moves)))
        lowest = sum(step.count * int(step.index[0]) for step in self.steps)
        highest = sum(step.count * int(step.index[-1]) for step in self.steps)
        return max(lowest, math.floor(-ends[0] / self.h)), min(highest, math.ceil(ends[1] / self.h))

    def _convolve(self, first: int, last: int) -> None:
        length = int(scipy.fft.next_fast_len(last - first + 1, real=True))
        transform = np.ones(length // 2 + 1, dtype=np.complex128)
        start, weight, runs = 0, 0.0, 0.0
        for step in self.steps:
            losses = step.losses(self.h)
            tilted = step.masses * np.exp(self.tilt * (losses - losses[-1]))
            tilted /= tilted.sum()
            around = np.bincount((step.index - step.index[0]) % length, weights=tilted, minlength=length)
            transform *= scipy.fft.rfft(around) ** step.count
            start += step.count * int(step.index[0])
            weight += step.count * float(np.linalg.norm(around))
            runs += step.count * (1 + self.tilt * float(losses[-1] - losses[0]))
        around = scipy.fft.irfft(transform, n=length)
        rounding = _FFT_ROUNDING * math.log2(max(length, 2))
        norm = weight + float(np.linalg.norm(around))
        # Sum of absolute errors ≤ √length · their norm; both tails of the window.
        self.error = rounding * (math.sqrt(length) * norm + runs) + 2 * math.exp(_TAIL)
        self.scale = 1 + _MARGIN + rounding * runs
        tilted = np.maximum(np.roll(around, (start - first) % length), 0.0)
        index = np.flatnonzero(tilted)
        self.losses = self.h * (first + index.astype(np.float64))
        # Rounding under the tilt must not raise a probability above 1.
        self.masses = np.exp(np.minimum(self.discrete - self.tilt * self.losses + np.log(tilted[index]), 0.0))

    def delta_at(self, epsilon: float) -> float:
        """Return the bound on δ, including all errors."""
        renyi = self.total - self.tilt * epsilon
        renyi += self.tilt * math.log(self.tilt) - (1 + self.tilt) * math.log1p(self.tilt)
        error = self.error * math.exp(min(renyi, 700.0))
        return float(np.dot(self.masses, _curve(self.mu, epsilon - self.losses))) * self.scale + error + self.lost

    def epsilon(self) -> float:
        """Return the smallest ε at which the bound on δ is met, rounded up."""

        def excess(epsilon: float) -> float:
            return math.log(max(self.delta_at(epsilon), 1e-320) / self.delta)

        if excess(0.0) <= 0:
            return 0.0
        high = self.start or self.h
        while excess(high) > 0:
            high *= 1.5
        root = float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-10))
        while excess(root) > 0:
            root = root * (1 + 1e-9) + 1e-12
        return root


def _step(part: Event, count: int, h: float) -> _Step:
    """Return the losses of one mechanism on the lattice."""
    if isinstance(part, SampledGaussianEvent):
        return _sampled_step(part, count, h)
    top = _largest_loss(part)
    last = math.ceil(top / h)
    masses = np.zeros(2 * last + 1)
    match part:
        case RandomisedResponseEvent():
            kept = 1 / (1 + (part.categories - 1) * math.exp(-top))
            masses[last] = (part.categories - 2) * kept * math.exp(-top)
            _add(masses, kept, top, h)
            _add(masses, kept * math.exp(-top), -top, h)
        case LaplaceEvent():
            _add(masses, 0.5, top, h)
            _add(masses, 0.5 * math.exp(-top), -top, h)
            _add_density(masses, top, h)
    return _Step(count, np.arange(-last, last + 1), masses)


def _ends(part: SampledGaussianEvent) -> Floats:
    """Return the two outcomes beyond which the first distribution has negligible mass."""
    return np.array([-_BEYOND * part.sigma, part.plus + _BEYOND * part.sigma])


def sampled_loss(part: SampledGaussianEvent, outcomes: Floats) -> Floats:
    """Return the privacy loss at each outcome, increasing in the outcome; the sampling rate must be below 1."""
    log_in, log_out, variance = math.log(part.rate), math.log1p(-part.rate), part.sigma**2
    first = np.logaddexp(log_out, log_in + part.plus * (outcomes - part.plus / 2) / variance)
    second = np.logaddexp(log_out, log_in - part.minus * (outcomes + part.minus / 2) / variance)
    return np.asarray(first - second)


@lru_cache(maxsize=256)
def _sampled_spread(part: SampledGaussianEvent) -> float:
    low, high = _ends(part)
    outcomes = np.linspace(low, high, 4001)
    weights = (1 - part.rate) * np.exp(-((outcomes / part.sigma) ** 2) / 2)
    weights += part.rate * np.exp(-(((outcomes - part.plus) / part.sigma) ** 2) / 2)
    losses = sampled_loss(part, outcomes)
    return float(np.sqrt(np.cov(losses, aweights=weights)))


def _sampled_step(part: SampledGaussianEvent, count: int, h: float) -> _Step:
    """Return the losses on the lattice, whose points are sparse in the tails."""
    low, high = _ends(part)
    bottom, top = (float(end) / h for end in sampled_loss(part, np.array([low, high])))
    offsets = list(range(math.ceil(8 * _sampled_spread(part) / h) + 1))
    while offsets[-1] < max(abs(bottom), abs(top)) + 1:
        offsets.append(max(offsets[-1] + 1, math.ceil(offsets[-1] * (1 + _GROWTH))))
    index = np.array([-offset for offset in offsets[:0:-1]] + offsets)
    # From the last point below all losses to the first one above them.
    index = index[np.searchsorted(index, bottom) - 1 : np.searchsorted(index, top) + 1]
    lower, upper = np.full(len(index), low), np.full(len(index), high)
    for _ in range(64):
        middle = (lower + upper) / 2
        below = sampled_loss(part, middle) < h * index
        lower, upper = np.where(below, middle, lower), np.where(below, upper, middle)
    edges = np.concatenate(([low], lower[1:-1], [high]))
    width = h * np.diff(index)

    def mass(mean: float) -> Floats:
        left, right = (edges[:-1] - mean) / part.sigma, (edges[1:] - mean) / part.sigma
        ndtr = scipy.special.ndtr
        return np.asarray(np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left)))

    under_p = (1 - part.rate) * mass(0.0) + part.rate * mass(part.plus)
    under_q = ((1 - part.rate) * mass(0.0) + part.rate * mass(-part.minus)) * np.exp(h * index[:-1])
    share = np.clip((under_p - under_q) / -np.expm1(-width), 0.0, under_p)
    masses = np.zeros(len(index))
    masses[1:] += share
    masses[:-1] += under_p - share
    masses[1] += max(0.0, 1 - float(masses.sum()))  # mass below the lowest loss
    return _Step(count, index, masses)


def _add(masses: Floats, mass: float, loss: float, h: float) -> None:
    """Split a mass at `loss` between the two points around it so that its total under P and under Q is unchanged."""
    place = loss / h
    upper = math.ceil(place)
    share = min(1.0, math.expm1(-(place - upper + 1) * h) / math.expm1(-h))
    middle = len(masses) // 2
    masses[middle + upper] += mass * share
    if share < 1:
        masses[middle + upper - 1] += mass * (1 - share)


def _add_density(masses: Floats, top: float, h: float) -> None:
    """Add the losses of Laplace noise between −top and top to `masses`: density e^(−(top − ℓ)/2)/4 under P."""
    middle = len(masses) // 2
    index = np.arange(-middle, middle)
    low, high = np.maximum(index * h, -top), np.minimum((index + 1) * h, top)
    width = np.maximum(high - low, 0.0)
    # Masses under P, and under Q in units of e^−(lower point): their difference gives the share of the upper point.
    under_p = np.exp(-(top - low) / 2) * np.expm1(width / 2) / 2
    under_q = -np.exp(-(top - low) / 2 - (low - index * h)) * np.expm1(-width / 2) / 2
    upper = np.clip((under_p - under_q) / -math.expm1(-h), 0.0, under_p)
    masses[1:] += upper
    masses[:-1] += under_p - upper


def _curve(mu: float, epsilons: Floats) -> Floats:
    """Return δ of a μ-GDP pair at every real ε; if μ is 0, it is 1 − e^ε for ε < 0 and 0 otherwise."""
    if mu == 0:
        return -np.expm1(np.minimum(epsilons, 0.0))
    near, far = epsilons / mu - mu / 2, epsilons / mu + mu / 2
    # In the tails both terms share the factor φ(near), as in `gaussian.log_delta_of`: nothing overflows or cancels.
    shared = np.exp(-near * near / 2) / 2
    first = np.where(
        near > 0, shared * scipy.special.erfcx(np.maximum(near, 0.0) / math.sqrt(2)), scipy.special.ndtr(-near)
    )
    second = np.where(
        far > 0,
        shared * scipy.special.erfcx(np.maximum(far, 0.0) / math.sqrt(2)),
        np.exp(np.minimum(epsilons, 0.0)) * scipy.special.ndtr(-far),
    )
    return np.asarray(first - second)
