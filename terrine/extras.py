"""Imports of optional dependencies, with an error that names the extra to install."""

from collections.abc import Iterator
from contextlib import contextmanager

from terrine.errors import TerrineError

OURS = ("terrine", "tasks", "flows")


class MissingExtraError(TerrineError, ImportError):
    """A package of one of Terrine's extras is not installed."""


@contextmanager
def from_extra(extra: str, what: str) -> Iterator[None]:
    """Raise MissingExtraError if a package imported in this block is not installed.

        with from_extra("pipeline", "Image files"):
            from PIL import Image

    Args:
        extra: Extra that contains the package.
        what: Feature that needs the package, in the plural.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in OURS:
            raise
        raise MissingExtraError(missing(name, extra, what), name=name) from error


def missing(package: str, extra: str, what: str) -> str:
    """Return the error message for a missing package of an extra."""
    return f"{what} need the package {package}, which is not installed: pip install 'terrine[{extra}]'."
