"""Parameters of one round that all parties derive from the terms, and the encoding of messages.

A message is a request or response body: arrays of known types and shapes, one after another, little-endian, each padded
to a multiple of eight bytes. Sender, receiver, collaboration, round and block are in the path of the request, which its
sender signs (`tasks.parties.keys`), so a body has no header. The receiver derives the expected shapes from the
agreement and its own state, so no memory is allocated because of a size that a body claims.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from terrine.errors import SettingError, TerrineError
from terrine.privacy.ledger.site_key import canonical_json

Reveal = Literal["argmax", "histogram", "sums"]
Spec = tuple[DTypeLike, tuple[int, ...]]

LARGEST_BODY = 16 * 2**20
"""Largest size of a message between the services, in bytes."""
_ALIGN = 8
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_CLASSES, _MOST_QUERIES, _MOST_TEACHERS = 4_096, 10_000_000, 1_000_000
_MOST_ROUNDS = 10_000
_FARTHEST_THRESHOLD = 2.0**32


class ProtocolError(TerrineError):
    """A message was refused because it departs from the protocol. No part of the message was used."""


@dataclass(frozen=True)
class Agreement:
    """One round of a collaboration.

    Attributes:
        collaboration: Digest of the terms: 64 hexadecimal digits.
        guardian: Party that adds the noise and garbles.
        student: Party that evaluates and learns the answers.
        teachers: Number of teachers of every teacher party, by name.
        minimum: Smallest number of teachers (not parties) whose reports are needed.
        queries: Number of queries, or of numbers if sums are revealed.
        classes: Number of classes, at least 2; 1 if sums are revealed.
        queries_digest: Digest of the queries in their order: 64 hexadecimal digits.
        reveal: `argmax` reveals a label for each query, `histogram` its noisy counts, `sums` noisy integers.
        threshold: Votes that max_j n_j + N(0, sigma_threshold²) must reach for a query to be answered; None: no test.
        sigma: Standard deviation of the noise on every count, in votes.
        sigma_threshold: Standard deviation of the noise of the test, in votes; None without a threshold.
        round: Number of the round; reports after the first depend on published weights.
        weights: Length of these weights; 0 in the first round.

    Raises:
        SettingError: A value is impossible for a round; the message names the field.
    """

    collaboration: str
    guardian: str
    student: str
    teachers: tuple[tuple[str, int], ...]
    minimum: int
    queries: int
    classes: int
    queries_digest: str
    reveal: Reveal
    threshold: float | None
    sigma: float
    sigma_threshold: float | None
    round: int = 0
    weights: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "teachers", tuple((str(name), int(held)) for name, held in self.teachers))
        for field in ("collaboration", "queries_digest"):
            if not _DIGEST.fullmatch(getattr(self, field)):
                raise SettingError(f"{field} has 64 hexadecimal digits, got {getattr(self, field)!r}.")
        names = [self.guardian, self.student, *(name for name, _ in self.teachers)]
        if len(set(names)) != len(names) or not all(names):
            raise SettingError(
                f"Guardian, student and teacher parties need different, non-empty names, got {names}. "
                "A guardian that is also a teacher party or the student party would see both shares."
            )
        if not self.teachers or min(held for _, held in self.teachers) < 1 or self.total > _MOST_TEACHERS:
            raise SettingError(
                f"Every teacher party needs at least one teacher; {_MOST_TEACHERS:,} in all are allowed."
            )
        if self.reveal not in get_args(Reveal):
            raise SettingError(f"reveal is one of {', '.join(get_args(Reveal))}, got {self.reveal!r}.")
        for field, low, high in (
            ("minimum", 1, self.total),
            ("queries", 1, _MOST_QUERIES),
            ("classes", *((1, 1) if self.reveal == "sums" else (2, _MOST_CLASSES))),
            ("round", 0, _MOST_ROUNDS),
            ("weights", *((1, _MOST_QUERIES) if self.round else (0, 0))),
        ):
            if not low <= getattr(self, field) <= high:
                raise SettingError(f"{field} is between {low} and {high:,}, got {getattr(self, field)}.")
        if (self.threshold is None) != (self.sigma_threshold is None):
            raise SettingError("threshold and sigma_threshold are given together or not at all.")
        if self.reveal == "sums" and self.threshold is not None:
            raise SettingError("Sums are revealed without a test: they have no threshold.")
        for field in ("sigma", "sigma_threshold"):
            value = getattr(self, field)
            if value is not None and not 0 < value < math.inf:
                raise SettingError(f"{field} is a positive number of votes, got {value!r}.")
        if self.threshold is not None and not abs(self.threshold) <= _FARTHEST_THRESHOLD:
            raise SettingError(f"threshold is a number of votes, at most 2^32, got {self.threshold!r}.")

    @cached_property
    def total(self) -> int:
        """N, the number of teachers of all parties."""
        return sum(held for _, held in self.teachers)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the agreement's canonical JSON: 32 bytes."""
        about = {field.name: getattr(self, field.name) for field in fields(self)}
        return hashlib.sha256(canonical_json(about)).digest()

    def held_by(self, name: str) -> int:
        """Return the number of teachers of a teacher party.

        Raises:
            SettingError: The round has no teacher party of this name.
        """
        for party, held in self.teachers:
            if party == name:
                return held
        raise SettingError(f"The agreement has no teacher party {name!r}.")


def body_of(*arrays: NDArray[Any]) -> bytes:
    """Encode arrays as a message body."""
    parts: list[Any] = []
    for array in arrays:
        data = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        parts += [data.reshape(-1).view("u1").data, bytes(-data.nbytes % _ALIGN)]
    return b"".join(parts)


def body_size(specs: Sequence[Spec]) -> int:
    """Return the size in bytes of a body with arrays of these types and shapes."""
    sizes = (math.prod(shape) * np.dtype(kind).itemsize for kind, shape in specs)
    return sum(size + -size % _ALIGN for size in sizes)


def arrays_of(body: bytes, specs: Sequence[Spec]) -> list[NDArray[Any]]:
    """Decode a message body into read-only views.

    Raises:
        ProtocolError: The body has the wrong number of bytes, or its padding is not zero.
    """
    if len(body) != (expected := body_size(specs)):
        raise ProtocolError(f"The message has {len(body):,} bytes, and {expected:,} are expected here.")
    arrays, offset = [], 0
    for kind, shape in specs:
        count = math.prod(shape)
        arrays.append(np.frombuffer(body, kind, count, offset).reshape(shape))
        end = offset + count * np.dtype(kind).itemsize
        offset = end + -end % _ALIGN
        if any(body[end:offset]):
            raise ProtocolError("The padding between the arrays of the message is not empty.")
    return arrays
