"""Locks between processes, and threads; the system frees them when their holder dies, however it dies."""

import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def locked(path: Path, patience: float = math.inf, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock at `path` against all others.

    Args:
        path: A file that exists for the time of the lock; its folder exists.
        patience: Seconds to wait for another holder.
        waiting: Called once where there is another holder.

    Raises:
        TimeoutError: another holder kept it for longer.
        OSError: its folder is missing or may not be written.
    """
    deadline = time.monotonic() + patience
    while True:
        file = opened(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
                waiting = None
            if time.monotonic() > deadline:
                file.close()
                raise TimeoutError(f"Another process has held {path} for more than {patience:g} s") from None
            if patience < math.inf:
                file.close()
                time.sleep(0.02)
                continue
            fcntl.flock(file, fcntl.LOCK_EX)
        # The holder before removed the file when it was done: then this lock is on a file nobody else can find.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        file.close()
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Hold the lock at `path` beside others that hold it so; its file stays, for `is_held`."""
    with opened(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_held(path: Path) -> bool:
    """Whether anybody holds the lock at `path`, together with others or alone. Nothing is made where there is none."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def opened(path: Path) -> IO[bytes]:
    """Open a file to lock, which is made where there is none; nobody else may read it."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
