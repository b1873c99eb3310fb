"""The locks of a project: one process at a time makes a run, reads a shared artefact, or keeps a file of names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import ReadWriteLock, Timeout

from terrine.locks import locked

FOLDER = Path(".dvc", "tmp", "terrine")
"""Folder of the locks in a project; DVC keeps it out of git."""


def lock_path(root: Path, name: str) -> Path:
    """Return the path of a lock of the project."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.lock"


@contextmanager
def at_work(root: Path) -> Iterator[None]:
    """Be one of the processes that make something in the project."""
    with ReadWriteLock(lock_path(root, "runs"), is_singleton=False).read_lock():
        yield


@contextmanager
def making(root: Path, run: str) -> Iterator[None]:
    """Be the only process that makes stages of this run. Others that want to wait; they may make other runs."""
    with locked(lock_path(root, f"run-{run}"), what=f"is making {run}"), at_work(root):
        yield


def when_alone(root: Path, action: Callable[[], None]) -> None:
    """Do something while no process is at work in the project; do nothing if one is."""
    alone = ReadWriteLock(lock_path(root, "runs"), is_singleton=False)
    with suppress(Timeout), alone.write_lock(blocking=False):
        action()
