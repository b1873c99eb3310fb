"""Randomness that can be made again: what a party draws in a session, from a secret that it wrote down with its sums.

A session that broke off is resumed by saying the same again, byte for byte. So both sides need what they drew in it;
32 bytes are kept instead, and stretched by SHAKE-256. Who uses it twice must say the same twice: the guardian checks
that it is asked the same before it answers (`guardian`).
"""

import hashlib
import os

SECRET = 32


def fresh_secret() -> bytes:
    """32 bytes from the operating system's entropy."""
    return os.urandom(SECRET)


class Expansion:
    """A stream of random bytes, the same for the same secret and purpose. Called as `os.urandom` is.

    >>> Expansion(bytes(32), "labels")(16) == Expansion(bytes(32), "labels")(16)
    True

    Args:
        secret: 32 bytes that nobody else knows.
        purpose: What the bytes are for; streams for different purposes are independent.
    """

    def __init__(self, secret: bytes, purpose: str) -> None:
        if len(secret) != SECRET:
            raise ValueError(f"A secret has {SECRET} bytes, not {len(secret)}.")
        self._start = b"terrine expansion\0" + secret + purpose.encode() + b"\0"
        self._drawn = 0

    def __call__(self, size: int) -> bytes:
        """The next bytes."""
        self._drawn += 1
        return hashlib.shake_256(self._start + self._drawn.to_bytes(8, "little")).digest(size)
