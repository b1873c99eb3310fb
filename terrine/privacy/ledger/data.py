"""What data releases are about, as a ledger remembers it: keyed digests of some of their records.

A budget belongs to people, and an account is a name. So that another name, or another ledger, is no second budget for
the same people, a reservation keeps a fingerprint of its data, and data that share records with those of another
account are refused there. `terrine.data.sketch` says which records of a dataset are looked at.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from terrine.privacy.ledger.identity import keyed_digest

SHARED = 1 / 200
"""Data are the same people's where more than this share of the smaller sketch is in both."""
_NAMED = 2_000


@dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of data under one key.

    Attributes:
        name: Digest of all of it.
        records: Of each record in the sketch, 16 hexadecimal digits.
    """

    name: str
    records: tuple[str, ...]

    @classmethod
    def of(cls, sketch: NDArray[np.uint64], key: bytes) -> Self:
        """The fingerprint of a sketch."""
        contents = sketch.astype(">u8").tobytes()
        records = sorted(_keyed(contents[place : place + 8], key) for place in range(0, len(contents), 8))
        return cls(name_of(records, key), tuple(records))

    def in_parts(self) -> Iterator[tuple[str, ...]]:
        """Its records, as many at a time as a database lets a question name."""
        return (self.records[start : start + _NAMED] for start in range(0, len(self.records), _NAMED))


def name_of(records: Iterable[str], key: bytes) -> str:
    """The name of a fingerprint of these records, in order."""
    return keyed_digest(key, "terrine data", "".join(records).encode())


def _keyed(digest: bytes, key: bytes) -> str:
    # BLAKE2b's own key: a fifth of the time of an HMAC, and there may be 30,000 of them.
    return hashlib.blake2b(digest, digest_size=8, key=key, person=b"terrine record").hexdigest()


def same_people(common: int, one: int, other: int) -> bool:
    """Whether sketches of these lengths are of the same people's data, with so many records in common."""
    return common >= max(1, math.ceil(SHARED * min(one, other)))
