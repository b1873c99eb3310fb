"""Locks that die with their holder."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from terrine.errors import LedgerError


@contextlib.contextmanager
def locked(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock at `path` against every other process and thread; the system frees it when the holder dies.

    Args:
        path: A file that exists for the time of the lock; its folder exists.
        patience: Seconds to wait for another holder.

    Raises:
        LedgerError: another holder kept it for longer, or its folder is missing or may not be written.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise LedgerError(f"The lock {path} cannot be taken: {error.strerror}. Nothing was released.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before removed the file when it was done: then this lock is on a file nobody else can find.
            if _same_file(descriptor, path):
                break
            os.close(descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise LedgerError(
                    f"Another process has held {path} for more than {patience:g} s: wait for it, or end it. Nothing "
                    "was released."
                ) from error
            time.sleep(0.02)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
