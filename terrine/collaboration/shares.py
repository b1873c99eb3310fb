"""Additive shares modulo 2^k: two numbers, each uniform by itself, that sum to the votes.

The modulus carries a noisy count with its sign: 2^(k−1) > N + 12σ, so noise wraps around with probability below 1e-32.
Where only the threshold test runs on the shares, 2^(k−1) > N is enough and never wraps: the guardian's threshold is a
whole number between 0 and N + 1 (`whole_thresholds`). Shares modulo 2^k are shares modulo any smaller power as well.

**Noise in whole votes costs nothing.** n + ⌊η + ½⌋ is ⌊n + η + ½⌋ for whole n: rounding, and reduction modulo 2^k, are
computed from n + η, so the exact figures of the Gaussian mechanism hold for the noise of `terrine.privacy.noise`
rounded here. A discrete Gaussian on whole votes would not have them (its trade-off curve is another one).
"""

import math
import os

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.errors import SettingError

ShareArray = NDArray[np.uint32]
NOISE_WIDTH = 12
_MOST_BITS = 32


def count_bits(teachers: int, sigma: float) -> int:
    """The smallest k with 2^(k−1) > N + 12σ.

    Raises:
        SettingError: more than 32 bits.
    """
    bits = math.floor(math.log2(teachers + NOISE_WIDTH * sigma)) + 2
    while bits > 2 and 2.0 ** (bits - 2) > teachers + NOISE_WIDTH * sigma:
        bits -= 1
    if bits > _MOST_BITS:
        raise SettingError(
            f"Shares of {teachers} teachers' votes with noise of {sigma} votes need {bits} bits, more than "
            f"{_MOST_BITS}: use less noise."
        )
    return bits


def threshold_bits(teachers: int) -> int:
    """The smallest k with 2^(k−1) > N: what the threshold test needs."""
    return teachers.bit_length() + 1


def share_type(bits: int) -> np.dtype:
    """The smallest unsigned type that holds a share."""
    return np.dtype("u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4")


def random_shares(shape: tuple[int, ...], bits: int) -> NDArray[np.unsignedinteger]:
    """Uniform numbers below 2^bits from the operating system's entropy, of `share_type`."""
    kind = share_type(bits)
    drawn = np.frombuffer(os.urandom(math.prod(shape) * kind.itemsize), kind).reshape(shape)
    shares: NDArray[np.unsignedinteger] = drawn & kind.type(2**bits - 1)
    return shares


def split(values: NDArray[np.integer], bits: int) -> tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]]:
    """Two arrays of `share_type` that sum to `values` modulo 2^bits."""
    one = random_shares(values.shape, bits)
    return one, modulo(values.astype(np.int64) - one, bits).astype(one.dtype)


def modulo(values: ArrayLike, bits: int) -> ShareArray:
    """Whole numbers of either sign modulo 2^bits."""
    reduced: NDArray[np.int64] = np.asarray(values).astype(np.int64) & (2**bits - 1)
    return reduced.astype(np.uint32)


def signed(shares: ArrayLike, bits: int) -> NDArray[np.int64]:
    """Numbers modulo 2^bits as the numbers in [−2^(bits−1), 2^(bits−1)) they stand for."""
    half = 2 ** (bits - 1)
    lifted: NDArray[np.int64] = np.asarray(shares).astype(np.int64) + half
    numbers: NDArray[np.int64] = (lifted & (2**bits - 1)) - half
    return numbers


def whole_votes(noise: ArrayLike) -> NDArray[np.int64]:
    """Noise rounded to whole votes, ⌊η + ½⌋: rounding that commutes with adding votes."""
    return np.floor(np.asarray(noise, dtype=np.float64) + 0.5).astype(np.int64)


def whole_thresholds(threshold: float, noise: ArrayLike, teachers: int) -> NDArray[np.int64]:
    """The whole number t for which n ≥ t is n + η ≥ T, for all whole n from 0 to N: ⌈T − η⌉, kept in [0, N + 1].

    The comparison is the one of the plaintext mechanism, n + η ≥ T in double precision, which is exact there: votes and
    noise share a lattice. T − η may have to be rounded, so the neighbours of ⌈T − η⌉ are tried as well.

    Args:
        threshold: T, in votes.
        noise: η, in votes.
        teachers: N.
    """
    eta = np.asarray(noise, dtype=np.float64)
    first = np.ceil(np.clip(threshold - eta, -1.0, teachers + 2.0)).astype(np.int64)
    first -= (first - 1) + eta >= threshold
    first += first + eta < threshold
    return np.clip(first, 0, teachers + 1)


def bits_of(shares: NDArray[np.unsignedinteger], bits: int) -> NDArray[np.uint8]:
    """Shares [queries, classes] as a circuit's input bits: [classes · bits, queries], a class's lowest bit first."""
    columns = shares.T.astype(np.uint32)
    spread = (columns[:, None, :] >> np.arange(bits, dtype=np.uint32)[None, :, None]) & np.uint32(1)
    return spread.astype(np.uint8).reshape(shares.shape[1] * bits, len(shares))
