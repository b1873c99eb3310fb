"""File locks of a project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import ReadWriteLock, Timeout

from terrine.locks import locked

FOLDER = Path(".dvc", "tmp", "terrine")
"""Folder of the locks in a project; DVC keeps it out of git."""


def lock_path(root: Path, name: str) -> Path:
    """Return the path of a lock of the project, and create its folder."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.lock"


@contextmanager
def at_work(root: Path) -> Iterator[None]:
    """Hold a shared lock while this process works in the project; see `when_alone`."""
    with ReadWriteLock(lock_path(root, "runs"), is_singleton=False).read_lock():
        yield


@contextmanager
def making(root: Path, run: str) -> Iterator[None]:
    """Lock a run for this process. Other processes that need the run wait, but may execute other runs."""
    with locked(lock_path(root, f"run-{run}"), what=f"is making {run}"), at_work(root):
        yield


def when_alone(root: Path, action: Callable[[], None]) -> None:
    """Call `action` unless a process is working in the project."""
    alone = ReadWriteLock(lock_path(root, "runs"), is_singleton=False)
    with suppress(Timeout), alone.write_lock(blocking=False):
        action()
