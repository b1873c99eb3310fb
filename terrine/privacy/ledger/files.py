"""Files that are whole or absent, and locks that die with their holder."""

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from terrine.errors import LedgerError


def write_atomically(path: Path, write: Callable[[BinaryIO], object], *, replace: bool = True) -> None:
    """Write a file that is seen whole or not at all, also after a power failure, readable by its owner alone.

    Args:
        path: Where; its folder exists.
        write: Called with the open file.
        replace: Whether an existing file gives way.

    Raises:
        FileExistsError: `replace` is false and the file exists; it is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            # A link, unlike a rename, never replaces what is there.
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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
