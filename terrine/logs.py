"""Suppress logs of other packages."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed(logger: str, level: int = logging.ERROR) -> Iterator[None]:
    """Suppress messages of a logger below `level` in this block."""
    found = logging.getLogger(logger)
    before = found.level
    found.setLevel(level)
    try:
        yield
    finally:
        found.setLevel(before)
