"""Locks between processes and threads, released by the operating system if the holder crashes."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def locked(path: Path, patience: float = math.inf, what: str | None = None) -> Iterator[None]:
    """Hold the lock at `path` against all other processes and threads.

    Args:
        path: File that exists while the lock is held; its folder is created.
        patience: Seconds to wait for another holder.
        what: Activity of the other holder, for a warning about waiting.

    Raises:
        TimeoutError: Another holder kept the lock for longer.
        OSError: the folder is not writable, or the file system does not support locks.
    """
    # No fallback to a file whose existence is the lock: the file would outlive a crashed holder.
    lock = FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if what is not None:
                logging.getLogger(__name__).warning("Another process %s: waiting until it is done.", what)
            lock.acquire(timeout=patience, poll_interval=0.02)
    except Timeout:
        raise TimeoutError(f"Another process has held {path} for more than {patience:g} s") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the release, so that a waiting process locks a new file
        lock.release()
