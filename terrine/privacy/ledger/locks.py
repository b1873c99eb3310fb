"""The ledger's locks: whoever does not get one releases nothing."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from terrine import locks
from terrine.errors import LedgerError


@contextmanager
def locked(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock at `path`, see `terrine.locks.locked`.

    Raises:
        LedgerError: another holder kept it for longer than `patience` seconds, or its folder is missing or may not be
            written.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locks.locked(path, patience))
        except TimeoutError as error:
            raise LedgerError(f"{error}: wait for it, or end it. Nothing was released.") from error
        except OSError as error:
            raise LedgerError(f"The lock {path} cannot be taken: {error.strerror}. Nothing was released.") from error
        yield
