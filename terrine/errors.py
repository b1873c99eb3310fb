"""Errors that a user can act on.

A message contains what is wrong, where, and what to do. The command line prints it without a traceback; any other
exception is a defect of Terrine and keeps its traceback.
"""

import difflib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class TerrineError(Exception):
    """Base class of all errors that a user can act on."""


class InputError(TerrineError, ValueError):
    """Input data cannot be used: a file, an array or a table."""


class SettingError(TerrineError, ValueError):
    """An invalid setting, or an invalid combination of settings."""


class BudgetError(TerrineError):
    """A release would exceed the privacy budget. Nothing was drawn and nothing was charged."""

    needs: float | None = None
    """If an account refused the release: budget ε over all runs, at the account's δ, that would have allowed it."""
    left: float | None = None
    """ε of the largest Gaussian release that the account still allows, at that δ."""


class LedgerError(TerrineError):
    """The ledger is missing, locked, damaged or was edited. Nothing was released."""

    account: str | None = None
    """Digest of another account named in the message."""


class ArtefactError(TerrineError):
    """A stored artefact is missing, incomplete or does not match its digest."""


@contextmanager
def named(place: str, given: object) -> Iterator[None]:
    """In errors raised by this block, replace a temporary path by the path that the user gave."""
    try:
        yield
    except TerrineError as error:
        error.args = (str(error).replace(place, str(given)),)
        raise


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean a, b or c?", or "" if no known word is similar."""
    return offered(difflib.get_close_matches(word, list(known)))


def offered(words: Sequence[str]) -> str:
    """Return " Did you mean a, b or c?", or "" without words."""
    return f" Did you mean {' or '.join(filter(None, [', '.join(words[:-1]), words[-1]]))}?" if words else ""


def some(names: Sequence[str], most: int = 5) -> str:
    """Return the first names of a list and the number of remaining ones, as text."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def typed(words: Iterable[str]) -> str:
    """Return a command in indented lines of at most 78 characters that can be copied to a shell."""
    lines = ["  "]
    for word in map(shlex.quote, words):
        if len(f"{lines[-1]}{word} \\") > 78 and lines[-1].strip():
            lines.append("    ")
        lines[-1] += f"{word} "
    return "\\\n".join(lines).rstrip()


def first_line(error: Exception) -> str:
    """Return the first line of another library's error message, or the name of the error's class if it is empty."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
