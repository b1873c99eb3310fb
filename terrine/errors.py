"""The errors a user can act on.

Every message is one or two sentences: what was wrong, where, and what to do about it. The command line prints the
message alone, without a traceback; anything else that is raised is a defect of Terrine and keeps its traceback.
"""


class TerrineError(Exception):
    """Base of every error whose message is addressed to the user."""


class InputError(TerrineError, ValueError):
    """Data that cannot be used as it is: a file, an array, a table."""


class SettingError(TerrineError, ValueError):
    """A parameter with an impossible value or an impossible combination of values."""


class BudgetError(TerrineError):
    """A release would pass the privacy budget. Nothing was drawn and nothing was charged."""


class LedgerError(TerrineError):
    """The ledger is missing, locked, damaged or was changed by hand. Nothing was released."""


class ArtefactError(TerrineError):
    """A stored artefact is missing, incomplete or does not match its digest."""


def first_line(error: Exception) -> str:
    """Return what another library's error says, in one line for a sentence of ours; its name where it says nothing."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
