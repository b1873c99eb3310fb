"""A release whose noise is drawn in the middle of something longer: the ledger's one door, held open.

`Ledger.release` reserves, draws, stores and commits in one call. A session of several parties reserves when it knows
that enough of them are there, and settles minutes later. So the call is made in a thread of its own, which waits inside
the draw until the session is over; all that the ledger guarantees holds as it does everywhere.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from terrine.errors import LedgerError
from terrine.privacy.accounting.events import Event
from terrine.privacy.ledger.ledger import Ledger, StoredRelease

Drawn = tuple[dict[str, np.ndarray], Event]


class _AbandonedError(LedgerError):
    """The session ended before there was anything to store; what was reserved stays charged."""


class Reservation:
    """One release, reserved at its worst case by `open` and charged at what it cost by `settle`.

    open_ledger: called in the thread that uses it. about: the arguments of `Ledger.release` but `draw`.
    """

    def __init__(self, open_ledger: Callable[[], Ledger], **about: Any) -> None:
        self._open_ledger = open_ledger
        self._about = about
        self._outcome: queue.Queue[Drawn | None] = queue.Queue()
        self._said: queue.Queue[StoredRelease | BaseException | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def open(self) -> StoredRelease | None:
        """Reserve the worst case; return the release where it was made before, and then nothing is left to do.

        Raises BudgetError and LedgerError as `Ledger.release` does: then nothing is charged.
        """
        if self._thread is not None:
            return None
        self._thread = threading.Thread(target=self._work, name="reservation", daemon=True)
        self._thread.start()
        return self._answer()

    def settle(self, arrays: dict[str, np.ndarray], event: Event) -> StoredRelease:
        """Store what was released, charge what it cost, and return the release.

        Raises LedgerError when it was not opened, or when it cost more than was reserved.
        """
        if self._thread is None:
            raise LedgerError("Nothing was reserved, so nothing can be charged.")
        self._outcome.put((arrays, event))
        release = self._answer()
        assert release is not None
        self._thread = None
        return release

    def abandon(self) -> None:
        """Let go without a release; the worst case stays charged, and the same release can be opened again."""
        if self._thread is not None:
            self._outcome.put(None)
            self._thread.join(10.0)
            self._thread = None

    def _answer(self) -> StoredRelease | None:
        said = self._said.get()
        if isinstance(said, BaseException):
            self._thread = None
            raise said
        if said is not None:
            self._thread = None
        return said

    def _work(self) -> None:
        try:
            self._said.put(self._open_ledger().release(draw=self._draw, **self._about))
        except _AbandonedError:
            pass
        except BaseException as error:
            self._said.put(error)

    def _draw(self) -> Drawn:
        self._said.put(None)
        outcome = self._outcome.get()
        if outcome is None:
            raise _AbandonedError("The session ended before there was an answer.")
        return outcome
