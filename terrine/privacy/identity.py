"""The private key of a site, and what it says about private data without giving anything away.

A plain digest of private data is itself private: whoever can guess the data can check the guess. So every digest that
leaves the private zone, and every digest the ledger is built on, is keyed (HMAC-SHA256) with a key that stays there.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine.errors import InputError, LedgerError
from terrine.privacy.files import write_atomically

_KEY_BYTES = 32
_ROWS_PER_CHUNK = 1_024


def load_or_create_key(path: Path) -> bytes:
    """The 32-byte key at `path`, made from the operating system's entropy the first time.

    Several processes may call this at once: one makes the key, all get the same one. The file is readable by its owner
    alone.

    Raises:
        LedgerError: the file holds something else, or cannot be made.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                write_atomically(path, lambda file: file.write(secrets.token_bytes(_KEY_BYTES)), replace=False)
        key = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"The key {path} can be neither read nor made: {error.strerror}.") from error
    if len(key) != _KEY_BYTES:
        raise LedgerError(
            f"The key {path} has {len(key)} bytes instead of {_KEY_BYTES}: restore it from a backup. A new key cannot "
            "read the ledger written under the old one."
        )
    return key


def keyed_digest(key: bytes, purpose: str, *parts: bytes) -> str:
    """HMAC-SHA256 in hexadecimal over a purpose and any number of parts, encoded so that no two inputs coincide."""
    code = hmac.new(key, digestmod=hashlib.sha256)
    for part in (purpose.encode(), *parts):
        code.update(len(part).to_bytes(8, "big"))
        code.update(part)
    return code.hexdigest()


def canonical_json(value: Any) -> bytes:
    """One byte string for equal JSON values, whatever the order of their keys; NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def release_identity(
    key: bytes,
    votes: NDArray[np.integer],
    query_order_digest: str,
    mechanism: Mapping[str, Any],
    dataset: str,
    *,
    noise: Mapping[str, Any] | None = None,
) -> str:
    """The identity of a release: equal for equal inputs, and meaningless without the key.

    Args:
        key: The site's key.
        votes: Whole numbers [queries, teachers] (or histograms). Their type does not matter, their values do.
        query_order_digest: Digest of the query set in the order it was asked.
        mechanism: JSON values that decide what is released: `Mechanism.describe()` with the run's `epsilon`
            and `delta`.
        dataset: The dataset's keyed fingerprint, as the ledger knows it.
        noise: `NoiseSource.describe()`, so that a replayed release is never mistaken for a secure one.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: votes that are not whole numbers in two dimensions.
    """
    votes = np.asarray(votes)
    if votes.ndim != 2 or not np.issubdtype(votes.dtype, np.integer):
        raise InputError(
            f"A release is identified by whole-number votes in two dimensions, got {votes.dtype} {votes.shape}."
        )
    digest = hashlib.sha256()
    for start in range(0, len(votes), _ROWS_PER_CHUNK):
        digest.update(np.ascontiguousarray(votes[start : start + _ROWS_PER_CHUNK], dtype="<i8").tobytes())
    description = {
        "dataset": dataset,
        "mechanism": dict(mechanism),
        "noise": dict(noise) if noise is not None else {"kind": "secure"},
        "query_order": query_order_digest,
        "shape": list(votes.shape),
    }
    return keyed_digest(key, "terrine release identity", canonical_json(description), digest.digest())
