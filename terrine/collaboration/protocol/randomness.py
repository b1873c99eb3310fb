"""Reproducible randomness: a stream expanded from a secret, so that an interrupted computation repeats every byte.

A service that is restarted sends the same messages again. Its messages use 32 stored random bytes, expanded with
SHAKE-256.
"""

import hashlib
import os

SECRET = 32


def fresh_secret() -> bytes:
    """Return 32 bytes of the operating system's entropy."""
    return os.urandom(SECRET)


class Expansion:
    """A stream of random bytes that depends only on secret and purpose. Call it like `os.urandom`.

    >>> Expansion(bytes(32), "labels")(16) == Expansion(bytes(32), "labels")(16)
    True

    Args:
        secret: 32 secret bytes.
        purpose: Label; streams with different labels are independent.
    """

    def __init__(self, secret: bytes, purpose: str) -> None:
        if len(secret) != SECRET:
            raise ValueError(f"A secret has {SECRET} bytes, not {len(secret)}.")
        self._start = b"terrine expansion\0" + secret + purpose.encode() + b"\0"
        self._drawn = 0

    def __call__(self, size: int) -> bytes:
        """Return the next bytes."""
        self._drawn += 1
        return hashlib.shake_256(self._start + self._drawn.to_bytes(8, "little")).digest(size)
