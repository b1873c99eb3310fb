"""Locks between processes; the system frees them when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

FOLDER = Path(".dvc", "tmp", "terrine")
"""Where those of a project lie; DVC keeps git away from it."""


@contextmanager
def locked(path: Path, what: str | None = None) -> Iterator[None]:
    """Hold the lock at `path`, and wait for as long as another process, or thread, holds it; the file goes with it.

    what: what the other one is doing, for a warning where that may take long.
    """
    while True:
        file = _opened(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if what is not None:
                logging.getLogger(__name__).warning("Another process %s: waiting until it is done.", what)
                what = None
            fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        file.close()  # the holder before removed it: nobody else can find this one
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def of_project(root: Path, name: str) -> Path:
    """Return where a lock of the project lies."""
    return root / FOLDER / f"{name}.lock"


@contextmanager
def making(root: Path, run: str) -> Iterator[None]:
    """Be the only process that makes stages of this run; others that want to wait. Other runs may be made meanwhile."""
    with _opened(of_project(root, "runs")) as runs, locked(of_project(root, f"run-{run}"), f"is making {run}"):
        fcntl.flock(runs, fcntl.LOCK_SH)
        yield


def when_alone(root: Path, action: Callable[[], None]) -> None:
    """Do something while no process makes any run of the project; do nothing where one does."""
    with _opened(of_project(root, "runs")) as runs, suppress(BlockingIOError):
        fcntl.flock(runs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        action()


def _opened(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "ab")
