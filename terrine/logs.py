"""Other packages' logs, while they are used."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hushed(logger: str, level: int = logging.ERROR) -> Iterator[None]:
    """Keep from the user what another package says of itself below `level` in the block."""
    found = logging.getLogger(logger)
    before = found.level
    found.setLevel(level)
    try:
        yield
    finally:
        found.setLevel(before)
