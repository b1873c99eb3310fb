"""The locks of a project: one process at a time makes a run, reads a shared artefact, keeps a file of names."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from terrine import locks

FOLDER = Path(".dvc", "tmp", "terrine")
"""Where those of a project lie; DVC keeps git away from it."""


@contextmanager
def locked(path: Path, what: str | None = None) -> Iterator[None]:
    """Hold the lock at `path`, and wait for as long as another process, or thread, holds it; the file goes with it.

    what: what the other one is doing, for a warning where that may take long.
    """

    def waiting() -> None:
        if what is not None:
            logging.getLogger(__name__).warning("Another process %s: waiting until it is done.", what)

    path.parent.mkdir(parents=True, exist_ok=True)
    with locks.locked(path, waiting=waiting):
        yield


def of_project(root: Path, name: str) -> Path:
    """Return where a lock of the project lies."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.lock"


@contextmanager
def at_work(root: Path) -> Iterator[None]:
    """Be one of the processes that make something in the project."""
    with locks.shared(of_project(root, "runs")):
        yield


@contextmanager
def making(root: Path, run: str) -> Iterator[None]:
    """Be the only process that makes stages of this run; others that want to wait. Other runs may be made meanwhile."""
    with locked(of_project(root, f"run-{run}"), f"is making {run}"), at_work(root):
        yield


def when_alone(root: Path, action: Callable[[], None]) -> None:
    """Do something while no process is at work in the project; do nothing where one is."""
    with locks.opened(of_project(root, "runs")) as runs, suppress(BlockingIOError):
        fcntl.flock(runs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        action()
