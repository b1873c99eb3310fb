"""Exact samples of the discrete Gaussian and the discrete Laplace distribution, many at a time.

For integers z, P(z) ∝ f(|z|/s) with f(t) = exp(−t²/2) or f(t) = exp(−t): rejection sampling from strips of width s, as
in Karney 2016 (Algorithm D), here with strips chosen by bits and for all candidates at once.

1. Draw a strip k ≥ 0 with probability 2^-(k+1): the number of zero bits before the first 1 in a random bit stream.
2. Draw a sign, and z = ⌈ks⌉ + r with r uniform below a power of two that is at least s. Start again unless z < (k+1)s,
   and unless z > 0 or the sign is plus. So every ±z is proposed in exactly one way, with probability ∝ 2^-k.
3. Keep z with probability c 2^k f(z/s), which for c = √e/2 (Gaussian) and c = 1 (Laplace) is at most 1.

**Why no rounding enters.** Steps 1 and 2 are integer arithmetic: s is a fraction whose denominator is a power of two.
Step 3 compares a uniform number, of which 64 bits were drawn, with a probability known in doubles to within 2^-46. If
the two differ by 2^-40 or less, further bits are drawn and the probability is computed in decimals with equally many
digits, until the comparison is certain. So samples are exactly distributed if the bits are fair, and errors of `exp` up
to that margin do not matter. Step 2 keeps at least half of the candidates, and step 3 about half.
"""

import math
import os
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from terrine.errors import SettingError

Distribution = Literal["gaussian", "laplace"]
Steps = NDArray[np.int64]
Words = NDArray[np.uint64]

# c 2^k f(t) = 2^(k - a) exp(e(t)): a, and e of arrays and of fractions.
_KEPT: dict[Distribution, tuple[int, Callable[[Any], Any]]] = {
    "gaussian": (1, lambda t: (1 - t * t) / 2),
    "laplace": (0, lambda t: -t),
}
_MARGIN = 2.0**-40
_LAST = [np.uint64(2**bits - 1) for bits in range(64)]  # masks
_CHUNK = 16_384  # candidates, whose arrays stay in the processor's cache


def sample(distribution: Distribution, count: int, scale: float) -> Steps:
    """Return `count` independent values, int64, from the operating system's entropy.

    scale: s, in steps: the Gaussian's parameter, which equals its standard deviation to double precision from a few
    steps on, or the Laplace distribution's mean absolute value. It must be positive, with a numerator below 2^53;
    otherwise SettingError is raised.
    """
    if not 0 < scale < math.inf or scale.as_integer_ratio()[0] >= 2**53:
        raise SettingError(f"A discrete distribution needs a positive scale below 2^53 steps, got {scale!r}.")
    drawn, filled = np.empty(count, dtype=np.int64), 0
    while filled < count:
        found = _candidates(distribution, min(_CHUNK, 4 * (count - filled) + 16), scale)[: count - filled]
        drawn[filled : filled + len(found)] = found
        filled += len(found)
    return drawn


def _candidates(distribution: Distribution, tries: int, scale: float) -> Steps:
    """Draw `tries` candidates and return the accepted ones."""
    numerator, denominator = scale.as_integer_ratio()
    shift, bits = denominator.bit_length() - 1, (math.ceil(scale) - 1).bit_length()
    power, exponent = _KEPT[distribution]
    words = _random(tries)
    strip = _trailing_zeros((words & _LAST[63]) >> np.uint64(bits), 63 - bits)
    start = strip * numerator  # of the strip, in parts of a step
    steps = ((start + denominator - 1) >> shift) + (words & _LAST[bits]).astype(np.int64)
    negative = words > _LAST[63]
    inside = ((steps << shift) - start < numerator) & ((steps > 0) | ~negative)
    strip, steps, negative = strip[inside], steps[inside], negative[inside]
    word = _random(len(steps))
    uniform = word * 2.0**-64
    chance = np.ldexp(np.exp(exponent(steps / scale)), strip - power)
    kept = uniform < chance
    for near in np.flatnonzero(np.abs(uniform - chance) <= _MARGIN):
        distance = Fraction(int(steps[near]) * denominator, numerator)
        kept[near] = _below(int(word[near]), int(strip[near]) - power, exponent(distance))
    found: Steps = np.where(negative, -steps, steps)[kept]
    return found


def _random(count: int) -> Words:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def _trailing_zeros(words: Words, width: int) -> Steps:
    """Return the number of zeros before the first 1 in endless fair bits; each word gives `width` of them."""
    lowest = words & (~words + np.uint64(1))
    zeros = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    none = np.flatnonzero(words == 0)
    if len(none):
        zeros[none] = width + _trailing_zeros(_random(len(none)), 64)
    return zeros


def _below(first: int, power: int, exponent: Fraction) -> bool:
    """Return whether a uniform number in [0, 1), whose first 64 bits are given, is below 2^power e^exponent."""
    uniform, bits = first, 64
    while True:
        uniform, bits = uniform << 64 | int.from_bytes(os.urandom(8)), bits + 64
        with localcontext() as context:
            context.prec = bits // 3 + 20
            # To 8 digits fewer: the division, the exponential and the product are rounded, and |exponent| < 10^5.
            value = (Decimal(exponent.numerator) / exponent.denominator).exp() * Decimal(2) ** (bits + power)
            unsure = value * Decimal(10) ** (8 - context.prec)
            if uniform + 1 <= value - unsure:
                return True
            if uniform >= value + unsure:
                return False
