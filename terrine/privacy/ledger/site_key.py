"""Private key of a site, and keyed digests.

A plain digest of private data is itself private, since guesses can be checked against it. Every digest that leaves the
private zone, and every digest in the ledger, is therefore an HMAC-SHA256 with a key that stays in that zone.
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
    """Return the 32-byte key at `path`, created from the operating system's entropy if missing.

    Several processes may call this at once and get the same key. Only the file's owner may have access.

    Raises:
        LedgerError: If the key file has invalid content, is readable by other users, or cannot be created.
    """
    try:
        if not path.exists():
            private_folder(path.parent)
            with (
                contextlib.suppress(FileExistsError, FileNotFoundError),  # another process created it
                atomic_file(path, replace=False, owner_only=True) as file,
            ):
                file.write(secrets.token_bytes(_KEY_BYTES))
        remove_temporary(path)
        key, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise LedgerError(f"The key {path} can be neither read nor created: {error.strerror}.") from error
    if len(key) != _KEY_BYTES:
        raise LedgerError(
            f"The key {path} has {len(key)} bytes instead of {_KEY_BYTES}. Restore it from a backup; a new key cannot "
            "read the existing ledger."
        )
    if mode & 0o077:
        raise LedgerError(
            f"The key {path} has mode {mode:04o}, so other users may read it. With it they can check guesses about "
            f"private data and forge the ledger. Run chmod 600 {path} and find out who had access. Nothing was "
            "released."
        )
    return key


def keyed_digest(key: bytes, purpose: str, *parts: bytes) -> str:
    """Return the HMAC-SHA256, in hexadecimal, of an unambiguous encoding of the purpose and the parts."""
    code = hmac.new(key, digestmod=hashlib.sha256)
    for part in (purpose.encode(), *parts):
        code.update(len(part).to_bytes(8, "big"))
        code.update(part)
    return code.hexdigest()


def account_of(key: bytes, name: str) -> str:
    """Return the digest of an account's name, as the site's ledgers store it."""
    return keyed_digest(key, "terrine ledger account", name.encode())


def canonical_json(value: Any) -> bytes:
    """Return a JSON value as bytes, independent of the order of keys. NaN and infinity raise ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def release_identity(
    key: bytes, *, account: str, edition: str, release: str, parameters: Mapping[str, Any], noise: Mapping[str, Any]
) -> str:
    """Return the identity of a release: a keyed function of public facts only.

    A release ID never depends on votes or other private data. Otherwise equality of two identities would be a noiseless
    answer about them, with probability one on one dataset and zero on its neighbour.

    Args:
        key: Key of the site.
        account: Digest of the account's name.
        edition: The operator's name of this version of the data.
        release: Name of the release within its run: "answers", "averages 3".
        parameters: JSON values of all upstream settings that differ from their defaults; settings added later thus
            change no identity.
        noise: `NoiseSource.describe()`, so that replayed and secure releases differ.

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
