"""Numbers modulo the prime 2^61 − 1, in arrays: what proofs about shares are computed with.

All arrays are uint64 with values below the prime. 2^61 is 1 modulo it, so reducing is shifting and adding.
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
_BLOCK = 2**13  # numbers that are multiplied at a time: what that needs stays in a core's cache


def reduced(numbers: Numbers) -> Numbers:
    """Any numbers of 64 bits modulo the prime."""
    folded: Numbers = (numbers >> np.uint64(BITS)) + (numbers & _PRIME)
    return np.minimum(folded, folded - _PRIME)  # what is below the prime wraps around to something larger


def add(left: Numbers, right: Numbers) -> Numbers:
    """Return left + right modulo the prime."""
    total = left + right
    return np.minimum(total, total - _PRIME)


def subtract(left: Numbers, right: Numbers) -> Numbers:
    """Return left − right modulo the prime."""
    difference = left - right
    return np.minimum(difference, difference + _PRIME)


def multiply(left: Numbers, right: Numbers | int) -> Numbers:
    """left · right, element by element [n], or by one number."""
    product = np.empty_like(left)
    other = np.asarray(right, np.uint64)
    for first in range(0, len(left), _BLOCK):
        part = slice(first, first + _BLOCK)
        product[part] = _multiplied(left[part], other[part] if other.ndim else other)
    return product


def _multiplied(left: Numbers, right: Numbers) -> Numbers:
    a, b, c, d = left >> _HALF, left & _LOW, right >> _HALF, right & _LOW
    middle, low = a * d + b * c, b * d
    # 2^64 is 8, and the middle times 2^32 is its top bits plus its lowest 29 times 2^32: a sum below 2^63.
    total = (a * c << np.uint64(3)) + (middle >> _MIDDLE) + ((middle & _REST) << _HALF) + (low & _PRIME)
    return reduced(total + (low >> np.uint64(BITS)))


def total(numbers: Numbers) -> int:
    """Σ numbers, for fewer than 2^31 of them."""
    return (int((numbers & _LOW).sum()) + (int((numbers >> _HALF).sum()) << 32)) % PRIME


def product(left: Numbers, right: Numbers) -> int:
    """Σ left · right."""
    return total(multiply(left, right))


def drawn(count: int, draw: Callable[[int], bytes]) -> Numbers:
    """Uniform numbers, up to 2^-61, from random bytes."""
    return reduced(np.frombuffer(draw(8 * count), "<u8") >> np.uint64(64 - BITS))
