"""Oblivious transfer: the student gets the labels of its input bits, and the guardian does not learn the bits.

128 base transfers (Chou & Orlandi 2015) in the prime-order subgroup of edwards25519, then the extension of Ishai,
Kilian, Nissim & Petrank 2003 with the consistency check of Keller, Orsini & Scholl 2015. The roles are reversed in the
base transfers: the student offers pairs of keys, and the guardian's 128 choices are the bits of Δ. The extension gives
the student rows t and the guardian rows q = t ⊕ bit · Δ. These rows are labels: q is the label of 0, t that of the
student's bit. So they need no further message and no hash; `garbling` hashes them with a hash that is robust against
the correlation Δ.

**Consistency check.** A student that hides other bits in one column than in another could read Δ off the tables that
it can open. The check is the one of figure 10 in the revised paper (ePrint 2015/546, version of 2022). The check of
the CRYPTO version combined rows; its lemma 1 is false (Roy 2022, appendix D). The check used here combines columns. For
each block of transfers, let

- x^i be the bits that the student hides in column i, u^i = t₀^i ⊕ t₁^i ⊕ x^i, with 128 random bits at the end, whose
  transfers are sacrificed: no wire uses them;
- χ be SHA-256 of the base transfers and of all matrices u so far, including this block's;
- h be the GHASH polynomial over GF(2^128) with the key that AES-GCM derives from χ, a linear function of a column.

With u the student sends x̃ = h(x) and t̃^i = h(t₀^i). The guardian holds q^i = t₀^i ⊕ Δ_i · x^i, and uses no part of
the block unless h(q^i) = t̃^i ⊕ Δ_i · x̃ for all 128 columns. χ is public, so GCM authenticates nothing here; it only
evaluates the polynomial fast.

*What a malicious student gains.* The points determine both keys of a base transfer and, together with u, the bits x^i,
whether or not the student computes the keys. The bits x^i are therefore fixed before χ is known. Let S be the columns
with h(x^i) ≠ x̃. A column in S passes only if t̃^i ⊕ h(t₀^i) is Δ_i · (h(x^i) ⊕ x̃), so only if the student guessed
Δ_i; the check passes with probability 2^-|S| (bit 0 of Δ is public and needs no guess). All columns outside S have
equal x^i, unless two different ones have the same hash: a column has at most 2^13 coefficients, so each pair of columns
collides for at most 2^13 of the 2^128 keys. With 2^13 pairs, a student that tries T matrices finds a collision with
probability at most T · 2^-102. That is the only use of grinding: before the guardian answers, nothing that the student
has depends on Δ. After a check that passed, the guardian's rows are t ⊕ x · Δ up to shifts that the student knows. So a
student party knows b bits of Δ with probability 2^-b, and may choose its input bits; it learns no more than that. The
127 − b unknown bits and the probability 2^-b multiply, so the bounds in `garbling` hold as they stand.

*Failure is final.* A failed check tells the student that its guess was wrong: at most one bit of Δ, under which earlier
blocks were garbled. `protocol.guardian_round` stores a message's digest before checking the message, and answers no
other message afterwards. So a student has one failed guess for each release, and no second try against the same Δ. The
comparison takes constant time, since its duration would otherwise reveal which column failed first.

*What the guardian gains.* x̃ is masked by the sacrificed bits, whose coefficient is not 0, and t̃ follows from x̃, q
and Δ. Therefore κ = 128 sacrificed transfers suffice; the CRYPTO version needed more for its random coefficients.

**Base transfers.** The student is the sender, the guardian the receiver. An answer is c·A + x·G with x uniform, so it
is independent of the choice c, for every A in the prime-order group. Both sides refuse points outside this group,
including points of small or mixed order. Keys are hashes of context, number, both points and shared point, and A is
sent before the answers; so a student cannot choose its keys. Chou & Orlandi's protocol is not known to suffice for an
extension that is universally composable (Canetti, Sarkar & Wang 2020): a simulator in polynomial time may fail to
extract the input of a party that does not compute its own keys. The argument above needs no such extraction. It is
statistical in the random-oracle and ideal-cipher model, for every student with a bounded number of calls, and
differential privacy holds for every function of its view; so the simulator may compute discrete logarithms. A guardian
that follows the protocol cannot find the student's bits under the computational Diffie-Hellman assumption.
"""

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nacl import bindings
from numpy.typing import NDArray

from terrine.collaboration.circuits.garbling import Labels
from terrine.errors import TerrineError

Draw = Callable[[int], bytes]
WIDTH = 128
POINT = 32
FIELD = 16
"""Bytes of an element of GF(2^128), and of the sacrificed bits of a block."""
_CHUNK = 2_048  # bytes of a column transposed at a time: what they need stays in a core's cache
# Distances of the exchanged bits, and masks of the bits of a 64-bit word that move down by the distance.
_EXCHANGES = [
    (places, np.uint64(sum(1 << bit for bit in range(64) if not bit & places))) for places in (32, 16, 8, 4, 2, 1)
]


class TransferError(TerrineError):
    """A point outside the group of the base transfers, or a matrix that fails the consistency check."""


class ExtensionMessage(NamedTuple):
    """The student's message for a block of transfers.

    Attributes:
        columns: uint8 [128, `column_bytes`], u: the student's bits, hidden in each column.
        bits: uint8 [16], x̃: the hash of the student's bits.
        hashes: uint8 [128, 16], t̃: the hash of each of the student's columns.
    """

    columns: NDArray[np.uint8]
    bits: NDArray[np.uint8]
    hashes: NDArray[np.uint8]


class Transcript:
    """The hash chain over base transfers and matrices that yields the challenges of the consistency check.

    Args:
        state: The challenge of the latest matrix, 32 bytes, or `Transcript.first`.
    """

    def __init__(self, state: bytes) -> None:
        self.state = state

    @staticmethod
    def first(context: bytes, offer: bytes, answers: NDArray[np.uint8]) -> bytes:
        """Return the state before any matrix.

        Args:
            context: Bytes that identify agreement, round and roles.
            offer: Point on the curve that the student published.
            answers: uint8 [128, 32], the guardian's points.
        """
        return hashlib.sha256(b"terrine transfer check\0" + context + offer + answers.tobytes()).digest()

    def challenge(self, columns: NDArray[np.uint8]) -> bytes:
        """Add a matrix and return its challenge, 32 bytes."""
        chain = hashlib.sha256(b"terrine transfer challenge\0" + self.state)
        chain.update(columns.data)
        self.state = chain.digest()
        return self.state


def column_bytes(bits: int) -> int:
    """Return the bytes of a column for this many transfers: elements of GF(2^128), the last one sacrificed."""
    return (bits + 127) // 128 * FIELD + FIELD


class BaseSender:
    """Sender of the base transfers (the student): offers 128 pairs of keys; the receiver computes one key of each.

    Args:
        context: Binds keys to agreement, round and roles.
        draw: Function that returns random bytes.
    """

    def __init__(self, context: bytes, draw: Draw = os.urandom) -> None:
        self._context = context
        self._secret = _random_scalar(draw)
        self.point = bindings.crypto_scalarmult_ed25519_base_noclamp(self._secret)

    def keys(self, answers: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the keys for 0 and for 1 of each transfer.

        Args:
            answers: uint8 [128, 32], the points of the other side.

        Returns:
            uint8 [2, 128, 16].

        Raises:
            TransferError: A point is outside the group.
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
    """Receiver of the base transfers (the guardian): chooses one key of each pair; its choices are the bits of Δ.

    Args:
        context: Binds keys to agreement, round and roles.
        choices: uint8 [128], 0 or 1.
        offer: Point on the curve that the sender published.
        draw: Function that returns random bytes, never the same ones for two offers.

    Attributes:
        points: uint8 [128, 32], the answer to the sender.
        keys: uint8 [128, 16], the chosen keys.

    Raises:
        TransferError: The sender's point is outside the group.
    """

    def __init__(self, context: bytes, choices: NDArray[np.uint8], offer: bytes, draw: Draw = os.urandom) -> None:
        offer = _checked(offer)
        self.points = np.empty((WIDTH, POINT), np.uint8)
        self.keys = np.empty((WIDTH, 16), np.uint8)
        for number, choice in enumerate(choices.tolist()):
            secret = _random_scalar(draw)
            plain = bindings.crypto_scalarmult_ed25519_base_noclamp(secret)
            # Both are computed, so that the time does not depend on the choice.
            point = (plain, bindings.crypto_core_ed25519_add(plain, offer))[choice]
            shared = bindings.crypto_scalarmult_ed25519_noclamp(secret, offer)
            self.points[number] = np.frombuffer(point, np.uint8)
            self.keys[number] = _key(context, number, offer, point, shared)


class ExtensionReceiver:
    """Receiver of the labels that belong to its input bits (the student).

    Args:
        keys: uint8 [2, 128, 16], from `BaseSender.keys`.
        transcript: Yields the challenges.
        draw: Function that draws the sacrificed bits.
        offset: Bytes of a column in all earlier blocks, the sum of their `column_bytes`.
    """

    def __init__(
        self, keys: NDArray[np.uint8], transcript: Transcript, draw: Draw = os.urandom, offset: int = 0
    ) -> None:
        self._streams = [[_stream(key, offset) for key in half] for half in keys]
        self._transcript, self._draw = transcript, draw

    def extend(self, bits: NDArray[np.uint8]) -> tuple[ExtensionMessage, Labels]:
        """Return the message and the labels of the transfers for these bits.

        Args:
            bits: uint8 [wires, queries], 0 or 1.

        Returns:
            The message for the other side and the labels, uint64 [wires, queries, 2].
        """
        width = column_bytes(bits.size)
        packed = np.zeros(width, np.uint8)
        packed[: (bits.size + 7) // 8] = np.packbits(bits.reshape(-1), bitorder="little")
        packed[-FIELD:] = np.frombuffer(self._draw(FIELD), np.uint8)
        columns, hidden = (_expanded(streams, width) for streams in self._streams)
        hidden ^= columns
        hidden ^= packed
        own, *hashes = combined(self._transcript.challenge(hidden), [packed, *columns])
        message = ExtensionMessage(hidden, own, np.stack(hashes))
        return message, transposed(columns)[: bits.size].reshape(*bits.shape, 2)


class ExtensionSender:
    """Sender of the labels (the guardian), which gets the labels of 0.

    Args:
        delta: uint64 [2], Δ, the choices of the base transfers.
        keys: uint8 [128, 16], from `BaseReceiver`.
        transcript: Yields the challenges.
        offset: Bytes of a column in all earlier blocks, as for `ExtensionReceiver`.
    """

    def __init__(self, delta: Labels, keys: NDArray[np.uint8], transcript: Transcript, offset: int = 0) -> None:
        self._mask = np.negative(bits_of_offset(delta))[:, None]  # 0 or 255
        self._streams = [_stream(key, offset) for key in keys]
        self._transcript = transcript

    def challenge(self, message: ExtensionMessage) -> bytes:
        """Return the challenge for the other side's next message, before any part of the message is used."""
        return self._transcript.challenge(message.columns)

    def extend(self, message: ExtensionMessage, challenge: bytes, wires: int, queries: int) -> Labels:
        """Return the labels of 0 of the transfers that a message starts: uint64 [wires, queries, 2].

        Args:
            message: Message of the other side.
            challenge: From `challenge`, called once for each message in order.
            wires: Number of input wires per query.
            queries: Number of queries in the block.

        Raises:
            TransferError: The message fails the consistency check. Δ must not be used any more.
        """
        columns = _expanded(self._streams, message.columns.shape[1])
        columns ^= message.columns & self._mask
        expected = message.hashes ^ (message.bits & self._mask)
        if not hmac.compare_digest(np.stack(combined(challenge, columns)).tobytes(), expected.tobytes()):
            raise TransferError("The columns of the transfer extension do not hide the same bits.")
        return transposed(columns)[: wires * queries].reshape(wires, queries, 2)


def combined(challenge: bytes, columns: Iterable[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """Return the linear combination of the elements of GF(2^128) in each column, uint8 [16] each.

    A column of the elements a_1, ..., a_n gives Σ_j a_j H^(n+2-j) with H = AES_χ(0): the tag that AES-GCM (NIST SP
    800-38D) computes for additional data, with a nonce of zeros, plus the tag of a column of zeros.

    Args:
        challenge: χ, 32 bytes.
        columns: uint8 [16 n] each, all of the same length.
    """
    columns = list(columns)
    cipher, nonce = AESGCM(challenge), bytes(12)
    zeros = np.zeros_like(columns[0])
    constant, *tags = (np.frombuffer(cipher.encrypt(nonce, b"", column.data), np.uint8) for column in (zeros, *columns))
    return [tag ^ constant for tag in tags]


def bits_of_offset(delta: Labels) -> NDArray[np.uint8]:
    """Return the bits of Δ, lowest first: uint8 [128]."""
    return np.unpackbits(delta.astype("<u8").view(np.uint8), bitorder="little")


def transposed(columns: NDArray[np.uint8]) -> Labels:
    """Transpose columns of bits, uint8 [128, bytes of words], to labels, uint64 [8 · bytes, 2], lowest bits first.

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


def _stream(key: NDArray[np.uint8], offset: int) -> Any:
    """Return the stream of a key, starting at a byte offset that is a multiple of 16."""
    return Cipher(algorithms.AES(key.tobytes()), modes.CTR((offset // 16).to_bytes(16, "big"))).encryptor()


def _key(context: bytes, number: int, offer: bytes, answer: bytes, shared: bytes) -> NDArray[np.uint8]:
    digest = hashlib.sha256(b"terrine transfer\0" + context + bytes([number]) + offer + answer + shared)
    return np.frombuffer(digest.digest()[:16], np.uint8)


def _random_scalar(draw: Draw) -> bytes:
    while True:
        scalar = bindings.crypto_core_ed25519_scalar_reduce(draw(64))
        if any(scalar):
            return scalar


def _checked(point: bytes) -> bytes:
    """Return the point; refuse one outside the subgroup of prime order, or of small order."""
    if not bindings.crypto_core_ed25519_is_valid_point(point):
        raise TransferError("A point of the base transfers is not in the prime-order group of edwards25519.")
    return point
