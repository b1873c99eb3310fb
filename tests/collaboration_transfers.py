"""Transfers for tests: base transfers without curves, students that hide different bits in different columns, and
GF(2^128) on whole numbers."""

import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from terrine.collaboration.circuits.transfer import (
    WIDTH,
    ExtensionMessage,
    ExtensionReceiver,
    ExtensionSender,
    Transcript,
    bits_of_offset,
    column_bytes,
    combined,
    transposed,
)

CONTEXT, OFFER, ANSWERS = b"session", bytes(32), np.zeros((WIDTH, 32), np.uint8)


def transcript(context=CONTEXT, offer=OFFER, answers=ANSWERS):
    return Transcript(Transcript.first(context, offer, answers))


def keys_of(delta, rng):
    """Keys as base transfers deal them: both of each pair for the student, one for the guardian."""
    keys = rng.integers(0, 256, (2, WIDTH, 16)).astype(np.uint8)
    return keys, keys[bits_of_offset(delta), np.arange(WIDTH)]


def sides(delta, rng, theirs=None):
    """A student that may cheat and a guardian, after base transfers."""
    keys, chosen = keys_of(delta, rng)
    return Cheater(keys, transcript()), ExtensionSender(delta, chosen, theirs or transcript())


class Flipping(Transcript):
    """A transcript whose owner flips bits of a matrix before its challenge is known."""

    def __init__(self, honest):
        self.state = honest.state

    flips = None

    def challenge(self, columns):
        if self.flips is not None:
            columns ^= self.flips
        self.last = super().challenge(columns)
        return self.last


class Cheater(ExtensionReceiver):
    """A student that hides bits ⊕ flips[i] in column i, answers the check and mends its labels as well as it can.

    Attributes:
        flips: uint8 [128, bytes], or None to be honest.
        guess: uint8 [128], its guess of the bits of Δ, in the columns where it flips anything.
        answer: Whether it answers as if its bits were bits ⊕ this column (uint8 [bytes]), or None.
    """

    flips = None
    guess = np.zeros(WIDTH, np.uint8)
    answer = None

    def __init__(self, keys, honest, draw=None, offset=0):
        super().__init__(keys, Flipping(honest), draw or os.urandom, offset)

    def extend(self, bits):
        self._transcript.flips = self.flips
        message, labels = super().extend(bits)
        if self.flips is None:
            return message, labels
        base = np.zeros_like(self.flips[0]) if self.answer is None else self.answer
        moved, *wrong = combined(self._transcript.last, [base, *(self.flips ^ base)])
        hashes = message.hashes ^ np.stack(wrong) * self.guess[:, None]
        known = transposed((self.flips ^ base) * self.guess[:, None])[: bits.size].reshape(labels.shape)
        return ExtensionMessage(message.columns, message.bits ^ moved, hashes), labels ^ known


def flips_of(bits, places):
    """Flipped bits, uint8 [128, bytes], from pairs (column, transfer); the sacrificed transfers are negative."""
    flips = np.zeros((WIDTH, column_bytes(bits)), np.uint8)
    for column, transfer in places:
        flips[column, transfer // 8] ^= 1 << transfer % 8
    return flips


def times(left, right):
    """left · right in GF(2^128) as NIST SP 800-38D writes it: the first bit of the first byte is the coefficient of 1.

    Plain polynomials over GF(2) as whole numbers, reduced by x^128 + x^7 + x^2 + x + 1.
    """
    a, b = (int(f"{int.from_bytes(value, 'big'):0128b}"[::-1], 2) for value in (left, right))
    product = 0
    for place in range(128):
        product ^= (a << place) * (b >> place & 1)
    for place in range(254, 127, -1):
        product ^= (0b10000111 | 1 << 128) << (place - 128) if product >> place & 1 else 0
    return int(f"{product:0128b}"[::-1], 2).to_bytes(16, "big")


def ghash(key, data):
    """GHASH of whole blocks: ((a_1 · H ⊕ a_2) · H ⊕ ...) · H."""
    state = bytes(16)
    for first in range(0, len(data), 16):
        state = times(bytes(x ^ y for x, y in zip(state, data[first : first + 16], strict=True)), key)
    return state


def slowly_combined(challenge, column):
    """Compute `combined` for a column on whole numbers."""
    key = Cipher(algorithms.AES(challenge), modes.ECB()).encryptor().update(bytes(16))
    return times(ghash(key, column.tobytes()), key)
