"""Arrays of numbers modulo the prime 2^61 − 1, the field in which proofs about shares are computed.

All arrays are uint64 with values below the prime. 2^61 is 1 modulo the prime, so a reduction takes a shift and an
addition.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

BITS = 61
PRIME = 2**BITS - 1
_PRIME = np.uint64(PRIME)
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)
_MIDDLE, _REST = np.uint64(29), np.uint64(2**29 - 1)
_BLOCK = 2**13  # numbers multiplied at a time: the working set stays in a core's cache


def reduced(numbers: Numbers) -> Numbers:
    """Reduce any 64-bit numbers modulo the prime."""
    folded: Numbers = (numbers >> np.uint64(BITS)) + (numbers & _PRIME)
    return np.minimum(folded, folded - _PRIME)  # a negative difference wraps around to a larger number


def add(left: Numbers, right: Numbers) -> Numbers:
    """Return left + right modulo the prime."""
    total = left + right
    return np.minimum(total, total - _PRIME)


def subtract(left: Numbers, right: Numbers) -> Numbers:
    """Return left − right modulo the prime."""
    difference = left - right
    return np.minimum(difference, difference + _PRIME)


def multiply(left: Numbers, right: Numbers | int) -> Numbers:
    """Return left · right modulo the prime: element by element [n], or with one number."""
    product = np.empty_like(left)
    other = np.asarray(right, np.uint64)
    for first in range(0, len(left), _BLOCK):
        part = slice(first, first + _BLOCK)
        product[part] = _multiplied(left[part], other[part] if other.ndim else other)
    return product


def _multiplied(left: Numbers, right: Numbers) -> Numbers:
    a, b, c, d = left >> _HALF, left & _LOW, right >> _HALF, right & _LOW
    middle, low = a * d + b * c, b * d
    # 2^64 is 8, and `middle` times 2^32 is its top bits plus its lowest 29 bits times 2^32: the sum is below 2^63.
    total = (a * c << np.uint64(3)) + (middle >> _MIDDLE) + ((middle & _REST) << _HALF) + (low & _PRIME)
    return reduced(total + (low >> np.uint64(BITS)))


def total(numbers: Numbers) -> int:
    """Return Σ numbers modulo the prime, for fewer than 2^31 numbers."""
    return (int((numbers & _LOW).sum()) + (int((numbers >> _HALF).sum()) << 32)) % PRIME


def product(left: Numbers, right: Numbers) -> int:
    """Return Σ left · right modulo the prime."""
    return total(multiply(left, right))


def drawn(count: int, draw: Callable[[int], bytes]) -> Numbers:
    """Return numbers from random bytes, uniform up to 2^-61."""
    return reduced(np.frombuffer(draw(8 * count), "<u8") >> np.uint64(64 - BITS))
