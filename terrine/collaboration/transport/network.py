"""The network's thread: one event loop for all parties of a process.

gRPC tells every event loop of a process of every message of any of them. So a hundred parties with a loop each wake a
hundred threads for each message, and with one loop they wake one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from terrine.collaboration.transport.link import TransportError

_LONGEST = 5.0

Result = TypeVar("Result")


class Network:
    """An event loop in a thread of its own, for as long as anybody uses it."""

    _lock = threading.Lock()
    _shared: Network | None = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._users = 0
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._thread.start()

    @classmethod
    def enter(cls) -> Network:
        """Return the network of this process; `leave` ends what this begins."""
        with cls._lock:
            if cls._shared is None or not cls._shared._thread.is_alive():  # of a process that this was forked from
                cls._shared = Network()
            cls._shared._users += 1
            return cls._shared

    def leave(self) -> None:
        """End the thread when nobody uses it."""
        with Network._lock:
            self._users -= 1
            if self._users:
                return
            Network._shared = None
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_LONGEST)

    def call(self, work: Coroutine[Any, Any, Result], timeout: float) -> Result:
        """Have the thread do something, and return what comes of it. Raises TransportError after so many seconds."""
        future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise TransportError(f"The network thread did not answer within {timeout:g} s.") from None

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
