"""What Terrine can do with packages that `pip install terrine` alone does not bring."""

from collections.abc import Iterator
from contextlib import contextmanager

from terrine.errors import TerrineError

OURS = ("terrine", "tasks", "flows")


class MissingExtraError(TerrineError, ImportError):
    """A package is not installed that an extra of Terrine brings."""


@contextmanager
def from_extra(extra: str, what: str) -> Iterator[None]:
    """Name the extra that brings what is imported within, where it is not installed.

        with from_extra("pipeline", "Image files"):
            from PIL import Image

    Raises MissingExtraError for a package that is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in OURS:
            raise
        raise MissingExtraError(missing(name, extra, what), name=name) from error


def missing(package: str, extra: str, what: str) -> str:
    """Return the sentence about a package that an extra brings."""
    return f"{what} need the package {package}, which is not installed: pip install 'terrine[{extra}]'."
