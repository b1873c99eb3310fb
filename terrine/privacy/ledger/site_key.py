"""The private key of a site, and what it says about private data without giving anything away.

A plain digest of private data is itself private: whoever can guess the data can check the guess. So every digest that
leaves the private zone, and every digest the ledger is built on, is keyed (HMAC-SHA256) with a key that stays there.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from terrine.errors import LedgerError
from terrine.files import atomic_file, private_folder, remove_temporary

_KEY_BYTES = 32


def load_or_create_key(path: Path) -> bytes:
    """The 32-byte key at `path`, made from the operating system's entropy the first time.

    Several processes may call this at once: one makes the key, all get the same one. The file is readable by its owner
    alone, and one that is not is refused.

    Raises:
        LedgerError: the file holds something else, others may read it, or it cannot be made.
    """
    try:
        if not path.exists():
            private_folder(path.parent)
            with (
                contextlib.suppress(FileExistsError, FileNotFoundError),  # another process made it, and cleared up
                atomic_file(path, replace=False, owner_only=True) as file,
            ):
                file.write(secrets.token_bytes(_KEY_BYTES))
        remove_temporary(path)
        key, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise LedgerError(f"The key {path} can be neither read nor made: {error.strerror}.") from error
    if len(key) != _KEY_BYTES:
        raise LedgerError(
            f"The key {path} has {len(key)} bytes instead of {_KEY_BYTES}: restore it from a backup. A new key cannot "
            "read the ledger written under the old one."
        )
    if mode & 0o077:
        raise LedgerError(
            f"The key {path} has mode {mode:04o}: others may read it, and who has it can confirm guesses about private "
            f"data and forge the ledger. Close it, chmod 600 {path}, and find out who could read it until now. Nothing "
            "was released."
        )
    return key


def keyed_digest(key: bytes, purpose: str, *parts: bytes) -> str:
    """HMAC-SHA256 in hexadecimal over a purpose and any number of parts, encoded so that no two inputs coincide."""
    code = hmac.new(key, digestmod=hashlib.sha256)
    for part in (purpose.encode(), *parts):
        code.update(len(part).to_bytes(8, "big"))
        code.update(part)
    return code.hexdigest()


def account_of(key: bytes, name: str) -> str:
    """What the site's ledger knows the account of this name as, whichever door a release comes through."""
    return keyed_digest(key, "terrine ledger account", name.encode())


def canonical_json(value: Any) -> bytes:
    """One byte string for equal JSON values, whatever the order of their keys; NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def release_identity(
    key: bytes, *, account: str, edition: str, release: str, parameters: Mapping[str, Any], noise: Mapping[str, Any]
) -> str:
    """The identity of a release: a function of public things alone, and meaningless without the key.

    Never of votes, nor of anything else that is computed from private data: were it, "this release is that one again"
    would be an answer about them without noise, and with probability one on one data set and none on its neighbour.

    Args:
        account: Whose budget the release draws on, as the ledger knows it.
        edition: The name that the operator gives this version of the data.
        release: Which of a run's releases it is: "answers", "averages 3".
        parameters: JSON values that decide what is released: every setting upstream of it that differs from its
            default, so that a setting that is new some day changes no identity.
        noise: `NoiseSource.describe()`, so that a replayed release is never mistaken for a secure one.

    Returns:
        64 hexadecimal digits.
    """
    description = {
        "account": account,
        "edition": edition,
        "release": release,
        "parameters": dict(parameters),
        "noise": dict(noise),
    }
    return keyed_digest(key, "terrine release", canonical_json(description))
