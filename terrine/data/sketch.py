"""A few digests of a dataset's records, by which it is known again when it is copied, grown, shrunk or resized.

Each record has a digest of its contents as their source has them, and one as they were brought to the run's geometry;
labels, groups, names, order and paths have no part in either. A sketch is the `SIZE` smallest distinct digests of each
kind (a bottom-k sketch, Cohen and Kaplan 2007): of up to so many records all are there. Of N more, a record is there
with probability SIZE / N, and of n other ones that they have among them about min(n, SIZE) · SIZE / N are found: in an
archive of 400,000 a cohort of 100 with a probability of 98 %, in one of a million a cohort of 300 with 99 %.

It is private, like the records: whoever can guess a record can look it up. It lies beside them, and what leaves that
place is keyed (`terrine.privacy.ledger.data`).
"""

import hashlib
from collections.abc import Iterable

import numpy as np

SIZE = 2**14
_CHUNK = 4096


def digest_of(contents: bytes, kind: str) -> int:
    """Return 64 bits of BLAKE2b of a record's contents, apart for each kind of contents."""
    return int.from_bytes(hashlib.blake2b(contents, digest_size=8, person=kind.encode()).digest(), "big")


def digests_of(texts: Iterable[bytes], kind: str) -> np.ndarray:
    """Return `digest_of` each of these contents, uint64 [N]."""
    return np.fromiter((digest_of(text, kind) for text in texts), dtype=np.uint64)


def digests_of_arrays(records: np.ndarray, kind: str) -> np.ndarray:
    """Return `digest_of` the bytes of each record, uint64 [N or fewer].

    Records of one value throughout, a black image, are left out: many who have nothing to do with each other have them.
    """
    found = []
    for start in range(0, len(records), _CHUNK):
        rows = np.ascontiguousarray(records[start : start + _CHUNK])
        rows = rows.reshape(len(rows), -1)
        several = (rows != rows[:, :1]).any(axis=1) if rows.shape[1] > 1 else np.ones(len(rows), bool)
        found.append(digests_of((row.tobytes() for row in rows[several]), kind))
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def sketch(*digests: np.ndarray) -> np.ndarray:
    """Return the `SIZE` smallest distinct digests of all these, uint64 [SIZE or fewer], in order."""
    return np.unique(np.concatenate(digests))[:SIZE]
