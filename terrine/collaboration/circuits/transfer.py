"""Oblivious transfer: the student gets the labels of its own input bits, and the guardian does not learn the bits.

128 base transfers (Chou & Orlandi 2015) in the prime-order subgroup of edwards25519, then IKNP extension (Ishai,
Kilian, Nissim & Petrank 2003) with symmetric cryptography alone. The extension runs the other way round: in the base
transfers the guardian chooses, and its 128 choices are the bits of Δ. The extension gives the student rows t and the
guardian rows q = t ⊕ bit · Δ, which are labels as they stand: q is the label of 0, t that of the student's bit. So no
further message is needed, and the student's bits are hidden by streams of which the guardian knows only half.

The semi-honest model: a student that hides different bits in different columns is not found out, and can learn bits of
Δ from which tables open. One that enters other bits than its own, but the same in all columns, learns nothing by it.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from nacl import bindings
from numpy.typing import NDArray

from terrine.collaboration.circuits.garbling import Labels
from terrine.errors import TerrineError

Draw = Callable[[int], bytes]
WIDTH = 128
POINT = 32
_CHUNK = 2_048  # bytes of a column transposed at a time: what they need stays in a core's cache
# How far apart bits change places, and the bits of a word of 64 that move down by so many places.
_EXCHANGES = [
    (places, np.uint64(sum(1 << bit for bit in range(64) if not bit & places))) for places in (32, 16, 8, 4, 2, 1)
]


class TransferError(TerrineError):
    """A point that is not in the group of the base transfers."""


def column_bytes(bits: int) -> int:
    """Bytes of one column for so many transfers: whole words of 64 bits."""
    return (bits + 63) // 64 * 8


class BaseSender:
    """Offers 128 pairs of keys, of which the other side can compute one each (the student).

    Args:
        context: Binds keys to agreement, round and roles.
        draw: Makes so many random bytes.
    """

    def __init__(self, context: bytes, draw: Draw = os.urandom) -> None:
        self._context = context
        self._secret = _random_scalar(draw)
        self.point = bindings.crypto_scalarmult_ed25519_base_noclamp(self._secret)

    def keys(self, answers: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The keys for 0 and for 1 of each transfer.

        Args:
            answers: uint8 [128, 32], the points of the other side.

        Returns:
            uint8 [2, 128, 16].

        Raises:
            TransferError: a point outside the group.
        """
        own = bindings.crypto_scalarmult_ed25519_noclamp(self._secret, self.point)
        keys = np.empty((2, WIDTH, 16), np.uint8)
        for number, answer in enumerate(answers):
            point = _checked(answer.tobytes())
            shared = bindings.crypto_scalarmult_ed25519_noclamp(self._secret, point)
            for value, secret in enumerate((shared, bindings.crypto_core_ed25519_sub(shared, own))):
                keys[value, number] = _key(self._context, number, self.point, point, secret)
        return keys


class BaseReceiver:
    """Chooses one key of each pair (the guardian; its choices are the bits of Δ).

    Args:
        context: Binds keys to agreement, round and roles.
        choices: uint8 [128], 0 or 1.
        offer: The sender's point.
        draw: Makes so many random bytes; for two offers never the same ones.

    Attributes:
        points: uint8 [128, 32], the answer to the sender.
        keys: uint8 [128, 16], the chosen keys.

    Raises:
        TransferError: the sender's point is outside the group.
    """

    def __init__(self, context: bytes, choices: NDArray[np.uint8], offer: bytes, draw: Draw = os.urandom) -> None:
        offer = _checked(offer)
        self.points = np.empty((WIDTH, POINT), np.uint8)
        self.keys = np.empty((WIDTH, 16), np.uint8)
        for number, choice in enumerate(choices.tolist()):
            secret = _random_scalar(draw)
            plain = bindings.crypto_scalarmult_ed25519_base_noclamp(secret)
            # Both are computed, so that time says nothing about the choice.
            point = (plain, bindings.crypto_core_ed25519_add(plain, offer))[choice]
            shared = bindings.crypto_scalarmult_ed25519_noclamp(secret, offer)
            self.points[number] = np.frombuffer(point, np.uint8)
            self.keys[number] = _key(context, number, offer, point, shared)


class ExtensionReceiver:
    """Gets the labels of its bits (the student).

    Args:
        keys: uint8 [2, 128, 16], from `BaseSender.keys`.
    """

    def __init__(self, keys: NDArray[np.uint8]) -> None:
        self._streams = [[_stream(key) for key in half] for half in keys]

    def extend(self, bits: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Labels]:
        """Transfers for these bits.

        Args:
            bits: uint8 [wires, queries], 0 or 1.

        Returns:
            What the other side needs, uint8 [128, bytes], and the labels, uint64 [wires, queries, 2].
        """
        width = column_bytes(bits.size)
        packed = np.zeros(width, np.uint8)
        packed[: (bits.size + 7) // 8] = np.packbits(bits.reshape(-1), bitorder="little")
        columns, hidden = (_expanded(streams, width) for streams in self._streams)
        hidden ^= columns
        hidden ^= packed
        return hidden, transposed(columns)[: bits.size].reshape(*bits.shape, 2)


class ExtensionSender:
    """Gets the labels of 0 (the guardian).

    Args:
        delta: uint64 [2], Δ, the choices of the base transfers.
        keys: uint8 [128, 16], from `BaseReceiver`.
    """

    def __init__(self, delta: Labels, keys: NDArray[np.uint8]) -> None:
        self._mask = np.negative(bits_of_offset(delta))[:, None]  # 0 or 255
        self._streams = [_stream(key) for key in keys]

    def extend(self, hidden: NDArray[np.uint8], wires: int, queries: int) -> Labels:
        """Labels of 0 for the transfers that the other side began with `hidden`: uint64 [wires, queries, 2]."""
        columns = _expanded(self._streams, hidden.shape[1])
        columns ^= hidden & self._mask
        return transposed(columns)[: wires * queries].reshape(wires, queries, 2)


def bits_of_offset(delta: Labels) -> NDArray[np.uint8]:
    """The bits of Δ, lowest first: uint8 [128]."""
    return np.unpackbits(delta.astype("<u8").view(np.uint8), bitorder="little")


def transposed(columns: NDArray[np.uint8]) -> Labels:
    """Columns of bits as rows of labels: uint8 [128, bytes of whole words] to uint64 [8 · bytes, 2], lowest bits first.

    Squares of 64 × 64 bits are transposed by six exchanges of halves (Warren, "Hacker's Delight").
    """
    words = columns.view("<u8").reshape(2, 64, -1)
    rows = np.empty((words.shape[2], 64, 2), "<u8")
    for first in range(0, len(rows), _CHUNK // 8):
        squares = words[:, :, first : first + _CHUNK // 8].copy()
        moved = np.empty((2, 32, squares.shape[2]), "<u8")
        for places, mask in _EXCHANGES:
            low, high = np.moveaxis(squares.reshape(2, 32 // places, 2, places, -1), 2, 0)
            change = moved.reshape(low.shape)
            np.right_shift(low, places, out=change)
            np.bitwise_xor(change, high, out=change)
            np.bitwise_and(change, mask, out=change)
            np.bitwise_xor(high, change, out=high)
            np.left_shift(change, places, out=change)
            np.bitwise_xor(low, change, out=low)
        rows[first : first + _CHUNK // 8] = squares.transpose(2, 1, 0)
    return rows.reshape(-1, 2)


def _expanded(streams: list[Any], width: int) -> NDArray[np.uint8]:
    zeros = bytes(width)
    return np.stack([np.frombuffer(stream.update(zeros), np.uint8) for stream in streams])


def _stream(key: NDArray[np.uint8]) -> Any:
    return Cipher(algorithms.AES(key.tobytes()), modes.CTR(bytes(16))).encryptor()


def _key(context: bytes, number: int, offer: bytes, answer: bytes, shared: bytes) -> NDArray[np.uint8]:
    digest = hashlib.sha256(b"terrine transfer\0" + context + bytes([number]) + offer + answer + shared)
    return np.frombuffer(digest.digest()[:16], np.uint8)


def _random_scalar(draw: Draw) -> bytes:
    while True:
        scalar = bindings.crypto_core_ed25519_scalar_reduce(draw(64))
        if any(scalar):
            return scalar


def _checked(point: bytes) -> bytes:
    """The point, if it is in the subgroup of prime order and not of small order."""
    if not bindings.crypto_core_ed25519_is_valid_point(point):
        raise TransferError("A point of the base transfers is not in the prime-order group of edwards25519.")
    return point
