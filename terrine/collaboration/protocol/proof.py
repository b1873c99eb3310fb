"""Zero-knowledge proof that a party's shares sum to votes, the counts of one one-hot vector per teacher.

A teacher party could share any numbers: a weight of 30 for one class, or −5. Guardian and student party each hold one
share X = (G, S) of every count; the party proves to both that for every query all counts are integers ≥ 0 that sum to
h, its number of teachers, and reveals nothing else. The proof is the fully linear interactive proof of Boneh et al.
2019 for inner products, of logarithmic size, made non-interactive like the coins of Prio3 (Davis et al. 2023): both
servers' shares are hashed, each with its own salt.

**Statement.** Over F, the integers modulo p = 2^61 − 1. Every count has B binary digits y (B digits hold h), which are
shared as well; the lowest one is the count minus the others, so counts and digits are always consistent. With coins w,
α that are hashes of all shares,

    Σ_i w_i y_i² = Σ_i w_i y_i + Σ_q α_q (Σ_j X_qj − h).

If y² ≠ y for a digit, or a query does not have h votes, this holds for only one in p choices of the coins.

**Proof.** The left side is ⟨u, v⟩ with u = y and v = w·y, which both servers compute from their shares. A product of n
terms is halved m = ⌈log₂ n⌉ times: the party shares p(0) and p(2) of p(t) = ⟨u₀ + t(u₁ − u₀), v₀ + t(v₁ − v₀)⟩, and
p(1) is the claim minus p(0); a coin t follows, and the claim becomes p(t). A false claim stays false except for 2 of
the p choices of t. In the end each server opens its shares of one u, one v and one claim c, and u · v = c is checked.

*Soundness.* A party that tries T hashes gets numbers that are not votes accepted with probability at most T · 2^-60.
The result in F carries over to integers: shares differ from their sum's mask by less than p/2 either way (`shares`).

*Zero knowledge.* u has one more term ρ where v has 0, and v one more, ρ′, where u has 0. Both are uniform and shared;
so the opened u and v are uniform for all votes (except for coins that are 0 or 1, m · 2^-60), and c = uv. Besides
these, a server sees only its own shares, and hashes of the other's under an unknown salt. A server's opening does not
depend on the other's: the coins follow from the teacher party's own message. So a student party that departs from this
protocol can cause a party to be refused, but learns nothing from it; there is one round, and a shifted share changes no
answer in it.

*Not shown.* That the votes are honest: a party may vote as it likes, h times per query.
"""

import hashlib
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from terrine.collaboration.protocol.field import PRIME, Numbers, add, drawn, multiply, product, reduced, subtract, total

SALT, DIGEST = 16, 32
OPENED = 3
_MASKS = 2
_BLOCK = 2**16  # terms per step, of as many as all counts have digits
_HALF_OF = pow(2, -1, PRIME)


class Proof(NamedTuple):
    """Part of a proof for one of the two servers.

    Attributes:
        salt: uint8 [16], for the hashes of this server's part.
        others: uint8 [1 + m, 32], hashes of the other server's part: its shares, then each halving.
        masks: uint64 [2], shares of ρ and ρ′.
        halvings: uint64 [m, 2], shares of p(0) and p(2).
    """

    salt: NDArray[np.uint8]
    others: NDArray[np.uint8]
    masks: Numbers
    halvings: Numbers


def digits_of(held: int) -> int:
    """Return B, the binary digits of a count up to `held`."""
    return held.bit_length()


def halvings_of(queries: int, classes: int, held: int) -> int:
    """Return m, the number of halvings of the terms."""
    return (queries * classes * digits_of(held) + _MASKS - 1).bit_length()


def split_digits(counts: NDArray[np.integer], held: int) -> tuple[Numbers, Numbers]:
    """Return two shares of the digits of counts [queries, classes], without the lowest: [queries, classes, B − 1]."""
    places = np.arange(1, digits_of(held), dtype=np.uint64)
    digits = (counts.astype(np.uint64)[..., None] >> places) & np.uint64(1)
    one = drawn(digits.size, os.urandom).reshape(digits.shape)
    return one, subtract(digits, one)


def prove(
    context: bytes, held: int, shares: tuple[Numbers, Numbers], digits: tuple[Numbers, Numbers]
) -> tuple[Proof, Proof]:
    """Return both servers' parts of the proof.

    Args:
        context: Bytes that are unique to this sharing.
        held: h.
        shares: Both servers' shares of counts in F, [queries, classes]. The proof fails for numbers that are not votes.
        digits: Shares of the counts' binary digits, from `split_digits`.
    """
    masks = [drawn(_MASKS, os.urandom) for _ in shares]
    salts = [os.urandom(SALT) for _ in shares]
    own = [_shares_hash(salt, *parts) for salt, *parts in zip(salts, shares, digits, masks, strict=True)]
    coins = _Coins(context, own[0], own[1])
    counts, whole = add(*shares), add(*digits)
    u, v, claim = _terms(coins, held, counts, whole, add(*masks), constant=True)
    hashes, halvings = [own], []
    queries, classes = counts.shape
    for number in range(halvings_of(queries, classes, held)):
        (u0, u1), (v0, v1) = _halves(u), _halves(v)
        at_0 = product(u0, v0)
        at_2 = product(subtract(add(u1, u1), u0), subtract(add(v1, v1), v0))
        values = np.array([at_0, at_2], np.uint64)
        one = drawn(2, os.urandom)
        parts = one, subtract(values, one)
        halvings.append(parts)
        hashes.append([_halving_hash(salt, number, part) for salt, part in zip(salts, parts, strict=True)])
        t = coins.next(*hashes[-1])
        claim = _at(t, claim, at_0, at_2)
        u, v = _folded(u0, u1, t), _folded(v0, v1, t)
    first, second = (
        Proof(
            np.frombuffer(salts[place], np.uint8),
            np.frombuffer(b"".join(pair[1 - place] for pair in hashes), np.uint8).reshape(-1, DIGEST),
            masks[place],
            np.array([parts[place] for parts in halvings], np.uint64),
        )
        for place in (0, 1)
    )
    return first, second


def opening(
    context: bytes, held: int, shares: Numbers, digits: Numbers, proof: Proof, *, second: bool
) -> tuple[bytes, Numbers]:
    """Return a server's opening: a 16-byte transcript, equal at both, and shares of u, v and c, uint64 [3].

    Args:
        context: The same bytes as in `prove`.
        held: h.
        shares: The server's shares of counts in F, [queries, classes].
        digits: [queries, classes, B − 1].
        proof: This server's part.
        second: Whether the server is the second one (the student party).
    """
    salt, others = proof.salt.tobytes(), [row.tobytes() for row in proof.others]
    coins = _Coins(context, *_ordered(_shares_hash(salt, shares, digits, proof.masks), others[0], second))
    u, v, claim = _terms(coins, held, shares, digits, proof.masks, constant=second)
    for number, part in enumerate(proof.halvings):
        t = coins.next(*_ordered(_halving_hash(salt, number, part), others[1 + number], second))
        claim = _at(t, claim, int(part[0]), int(part[1]))
        (u0, u1), (v0, v1) = _halves(u), _halves(v)
        u, v = _folded(u0, u1, t), _folded(v0, v1, t)
    return coins.last(), np.array([u[0], v[0], claim], np.uint64)


def accepted(one: Numbers, other: Numbers) -> bool:
    """Return whether both servers' openings, uint64 [3] each, belong to votes."""
    u, v, claim = (int(value) for value in add(reduced(one), reduced(other)))
    return u * v % PRIME == claim


class _Coins:
    """Coins of a proof: hashes of all earlier messages to both servers."""

    def __init__(self, context: bytes, first: bytes, second: bytes) -> None:
        self._state = hashlib.sha256(b"terrine proof of votes\0" + context + first + second).digest()

    def weights(self) -> Callable[[int], bytes]:
        """Return a stream of the bytes of w, then of α."""
        stream = Cipher(algorithms.AES(self._state), modes.CTR(bytes(16))).encryptor()
        return lambda size: stream.update(bytes(size))

    def next(self, first: bytes, second: bytes) -> int:
        self._state = hashlib.sha256(self._state + first + second).digest()
        return int(drawn(1, lambda size: self._state[:size])[0])

    def last(self) -> bytes:
        return hashlib.sha256(self._state + b"the end").digest()[:16]


def _terms(
    coins: _Coins, held: int, counts: Numbers, digits: Numbers, masks: Numbers, *, constant: bool
) -> tuple[Numbers, Numbers, int]:
    """Return u, v and the claim about ⟨u, v⟩, or shares of them; `constant`: this server adds the public terms."""
    queries, classes = counts.shape
    base = digits.shape[2] + 1
    u, v = np.zeros(counts.size * base + _MASKS, np.uint64), np.zeros(counts.size * base + _MASKS, np.uint64)
    stream, claim = coins.weights(), 0
    for first in range(0, queries, rows := max(1, _BLOCK // (classes * base))):
        part = slice(first, min(first + rows, queries))
        lowest = counts[part]
        for place in range(base - 1):
            digit = digits[part, :, place]
            lowest = subtract(lowest, multiply(digit.reshape(-1), 2 ** (place + 1)).reshape(digit.shape))
        terms = slice(part.start * classes * base, part.stop * classes * base)
        u[terms] = np.concatenate([lowest[..., None], digits[part]], axis=2).reshape(-1)
        v[terms] = multiply(u[terms], drawn(terms.stop - terms.start, stream))
        claim += total(v[terms])
    u[-2], v[-1] = masks
    votes = counts[:, 0]
    for column in range(1, classes):
        votes = add(votes, counts[:, column])
    if constant:
        votes = subtract(votes, np.full_like(votes, held))
    return u, v, (claim + product(votes, drawn(queries, stream))) % PRIME


def _halves(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return both halves; the second one is padded with a 0 if it is shorter."""
    half = (len(numbers) + 1) // 2
    left, right = numbers[:half], numbers[half:]
    return left, right if len(right) == half else np.append(right, np.uint64(0))


def _folded(left: Numbers, right: Numbers, t: int) -> Numbers:
    """Compute left + t · (right − left) in place."""
    for first in range(0, len(left), _BLOCK):
        part = slice(first, first + _BLOCK)
        left[part] = add(left[part], multiply(subtract(right[part], left[part]), t))
    return left


def _at(t: int, claim: int, at_0: int, at_2: int) -> int:
    """Return p(t) for the polynomial of degree 2 given by p(0), p(2) and p(1) = claim − p(0)."""
    at_1 = claim - at_0
    square = (at_2 - 2 * at_1 + at_0) * _HALF_OF
    return (at_0 + t * (at_1 - at_0 - square) + t * t * square) % PRIME


def _shares_hash(salt: bytes, shares: Numbers, digits: Numbers, masks: Numbers) -> bytes:
    digest = hashlib.sha256(b"shares" + salt)
    for part in (shares, digits, masks):
        digest.update(np.ascontiguousarray(part, "<u8").reshape(-1).data)
    return digest.digest()


def _halving_hash(salt: bytes, number: int, part: Numbers) -> bytes:
    content = salt + number.to_bytes(4, "little") + np.ascontiguousarray(part, "<u8").tobytes()
    return hashlib.sha256(b"halving" + content).digest()


def _ordered(own: bytes, other: bytes, second: bool) -> tuple[bytes, bytes]:
    return (other, own) if second else (own, other)
