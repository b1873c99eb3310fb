"""The errors a user can act on.

Every message is one or two sentences: what was wrong, where, and what to do about it. The command line prints the
message alone, without a traceback; anything else that is raised is a defect of Terrine and keeps its traceback.
"""

import difflib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class TerrineError(Exception):
    """Base of every error whose message is addressed to the user."""


class InputError(TerrineError, ValueError):
    """Data that cannot be used as it is: a file, an array, a table."""


class SettingError(TerrineError, ValueError):
    """A parameter with an impossible value or an impossible combination of values."""


class BudgetError(TerrineError):
    """A release would pass the privacy budget. Nothing was drawn and nothing was charged."""

    needs: float | None = None
    """Where an account refused: the ε over all runs that would have allowed it, at the account's δ."""
    left: float | None = None
    """And the ε by itself, at that δ, of the largest Gaussian release that it still allows."""


class LedgerError(TerrineError):
    """The ledger is missing, locked, damaged or was changed by hand. Nothing was released."""


class ArtefactError(TerrineError):
    """A stored artefact is missing, incomplete or does not match its digest."""


@contextmanager
def named(place: str, given: object) -> Iterator[None]:
    """Let errors name what the user gave, and not the place where it was unpacked for the time of the block."""
    try:
        yield
    except TerrineError as error:
        error.args = (str(error).replace(place, str(given)),)
        raise


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean a, b or c?", to follow a sentence, or "" where no known word is like this one."""
    return offered(difflib.get_close_matches(word, list(known)))


def offered(words: Sequence[str]) -> str:
    """Return the question " Did you mean a, b or c?", or "" where there are no words."""
    return f" Did you mean {' or '.join(filter(None, [', '.join(words[:-1]), words[-1]]))}?" if words else ""


def some(names: Sequence[str], most: int = 5) -> str:
    """Return the first names of a list, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def typed(words: Iterable[str]) -> str:
    """Return a command to be typed, in indented lines of at most 78 characters: what is copied from them works."""
    lines = ["  "]
    for word in map(shlex.quote, words):
        if len(f"{lines[-1]}{word} \\") > 78 and lines[-1].strip():
            lines.append("    ")
        lines[-1] += f"{word} "
    return "\\\n".join(lines).rstrip()


def first_line(error: Exception) -> str:
    """Return what another library's error says, in one line for a sentence of ours; its name where it says nothing."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
