"""Atomic writes of files and folders, and permissions of private ones."""

import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from terrine.errors import ArtefactError


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_below(folder: Path) -> dict[str, Path]:
    """Return the files below a folder by their names in it ("/" between parts), sorted by name."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return dict(sorted(found.items()))


@contextmanager
def atomic_file(
    path: Path, mode: str = "wb", *, replace: bool = True, owner_only: bool = False, alone: bool = False
) -> Iterator[IO[Any]]:
    """Open a temporary file that replaces `path` if the block succeeds and is deleted otherwise.

    Readers see the complete file or none, even after a power failure.

    Args:
        path: Path of the file; its folder must exist.
        mode: `wb`, or `w` for text in UTF-8.
        replace: Whether to replace an existing file.
        owner_only: Whether only the owner may read the file.
        alone: Whether a lock prevents concurrent writers. The temporary file then has a fixed name, so one left by a
            killed process is replaced without listing the folder.

    Raises:
        FileExistsError: `replace` is false and the file exists; it stays unchanged.
        OSError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{'alone' if alone else secrets.token_hex(6)}.tmp")
    if alone:
        temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if owner_only else 0o666)
    try:
        with os.fdopen(descriptor, mode, encoding=None if "b" in mode else "utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, it never replaces a file
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path, *, owner_only: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder that replaces `path` when the block succeeds, and is deleted otherwise.

    Args:
        path: Path of the folder; its parent must exist.
        owner_only: Whether only the owner may enter the folder.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(16)}.tmp")
    temporary.mkdir(0o700 if owner_only else 0o777)
    try:
        yield temporary
        if path.exists():
            retired = path.with_name(f".{path.name}.{secrets.token_hex(16)}.old")
            os.rename(path, retired)
            os.rename(temporary, path)
            shutil.rmtree(retired)
        else:
            os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(path.parent)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Raise ArtefactError instead of OSError if `path` cannot be written in this block."""
    try:
        yield
    except OSError as error:
        raise ArtefactError(
            f"{path} could not be written: {error.strerror or error}. Nothing was left behind."
        ) from error


def remove_temporary(path: Path) -> None:
    """Delete temporary files of `path` left by killed processes; no other process may be writing it."""
    for abandoned in path.parent.glob(f".{path.name}.*.tmp"):
        abandoned.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Flush a file written by another library to the disk."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, if the platform can sync folders."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def private_folder(path: Path) -> None:
    """Create a folder that only its owner may enter; an existing folder stays unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def restrict_to_owner(path: Path) -> None:
    """Remove the permissions of all but the owner on a file or folder, if it exists and can be changed."""
    with suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            path.chmod(mode & 0o700)


def json_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, creating its folder if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, "w") as stream:
        stream.write(text)
