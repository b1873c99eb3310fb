"""Arrays of pixels that may be larger than memory: those lie in a file without a name, in a folder that was named.

    with on_disk(folder):
        images = empty((1_000_000, 1, 224, 224))

What is private must lie nowhere but where its keeper said; so without a folder there is memory alone. The file has no
name, and is gone with the array or with the process, whatever ends it. Its pages are the system's to write out.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from terrine.errors import InputError

LARGE = 2**28
"""Bytes from which on an array lies in a file."""

_folder: ContextVar[Path | None] = ContextVar("folder", default=None)


@contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """Within, large arrays of `empty` lie in files in `folder`."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def empty(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of bytes whose contents are anything. Raises InputError where the disk has no room for it."""
    folder, size = _folder.get(), math.prod(shape)
    if folder is None or size < LARGE:
        return np.empty(shape, np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder) as file:
        try:
            # Now, since a write into a mapped file finds the disk full by ending the process.
            reserve = getattr(os, "posix_fallocate", None)
            reserve(file.fileno(), 0, size) if reserve else file.truncate(size)
        except OSError as error:
            raise InputError(
                f"{folder} has no room for {size / 2**30:,.1f} GiB of images ({error.strerror}). Free some, twice as "
                "much as they take, or choose a smaller data.size."
            ) from error
        return np.memmap(file, np.uint8, "r+", shape=shape)
