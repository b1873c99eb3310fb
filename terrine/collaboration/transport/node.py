"""A party on the network: its links, the session they are in, and what it says of itself.

All of it lives in the network's thread, in one event loop; `terrine.collaboration.transport.wire.Wire` is how the
host's thread reaches it.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from terrine.collaboration.transport.credentials import Credentials, Role
from terrine.collaboration.transport.link import (
    Arrived,
    Connected,
    Link,
    LinkEvent,
    PeerRestarted,
    TransportError,
    greeting_message,
)

_UNACKNOWLEDGED = 48 * 2**20  # bytes a link keeps before whoever sends must wait
_UNREAD = 48 * 2**20  # bytes that wait for the host before peers must wait
_LAST_SECONDS = 0.5


def weight(event: Arrived) -> int:
    """Return as how many bytes a message counts while nobody has looked at it."""
    return len(event.content) if isinstance(event.content, bytes) else 256


class Node:
    """What all connections of one party share.

    Args:
        credentials: Whom this party shows itself as, and whom it trusts.
        terms: What all parties agreed on, JSON values.
        emit: Hands an event to the host's thread.
    """

    def __init__(self, credentials: Credentials, terms: Mapping[str, Any], emit: Callable[[LinkEvent], None]) -> None:
        self.instance = secrets.token_hex(8)
        self.session: str | None = None
        self.credentials = credentials
        self.terms = json.loads(json.dumps(terms))
        self.greeting: dict[str, Any] = {}
        self.links: dict[str, Link] = {}
        self.emit = emit
        self.changed = asyncio.Event()
        """Set, and replaced by another, when a session begins."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self._unread = 0
        self._space = asyncio.Event()
        self._space.set()

    def link(self, peer: str, role: Role) -> Link:
        """Return the link to a peer, the only one there is."""
        return self.links.setdefault(peer, Link(peer, role))

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside the rest until it ends or the party closes its connections."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def begin(self, session: str) -> None:
        """Begin a session: what was under way on any link is dropped."""
        self.session = session
        for link in self.links.values():
            link.reset()
            if link.stream is not None:
                link.stream.cancel()
        self.changed.set()
        self.changed = asyncio.Event()

    async def put(self, to: str, kind: bytes, body: bytes, patience: float) -> None:
        """Leave a message with a link, when there is room; see `Wire.send` for the errors."""
        link = self.links.get(to)
        if link is None:
            raise TransportError(f"There is no party {to!r} to send to.")
        session, end = self.session, time.monotonic() + patience
        if link.restarted:
            raise PeerRestarted(f"{to!r} was started again in the middle of a session.")
        while link.kept + len(body) > _UNACKNOWLEDGED and link.outgoing:
            link.room.clear()
            try:
                await asyncio.wait_for(link.room.wait(), max(0.0, end - time.monotonic()))
            except TimeoutError:
                raise TransportError(
                    f"{to!r} has taken nothing for {patience:g} s: it was stopped, or the network is cut."
                ) from None
            if self.session != session:
                return
            if link.restarted:
                raise PeerRestarted(f"{to!r} was started again in the middle of a session.")
            end = time.monotonic() + patience
        link.put(kind, body)

    async def acknowledged(self, peer: str, timeout: float) -> bool:
        """Wait until a peer has acknowledged everything; say whether it did."""
        link = self.links.get(peer)
        if link is None:
            return True
        end = time.monotonic() + timeout
        while link.outgoing:
            link.room.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(link.room.wait(), max(0.01, end - time.monotonic()))
            if time.monotonic() > end:
                return False
        return True

    async def arrived(self, event: Arrived) -> None:
        """Hand a message to the host, and come back when the host has read enough of what came before."""
        self._unread += weight(event)
        self.emit(event)
        if self._unread >= _UNREAD:
            self._space.clear()
            await self._space.wait()

    def consumed(self, size: int) -> None:
        """Take note that the host has read a message of this weight."""
        self._unread -= size
        if self._unread < _UNREAD:
            self._space.set()

    def hello(self, link: Link) -> bytes:
        """Return what this party says first on a connection."""
        identity = self.credentials.identity
        return greeting_message(
            name=identity.name,
            role=identity.role,
            instance=self.instance,
            session=self.session,
            met=link.instance,
            received=link.received,
            terms=self.terms,
            greeting=self.greeting,
        )

    def meet(self, link: Link, hello: dict[str, Any]) -> None:
        """Take note of the greeting of a peer that is in our session, and tell the host."""
        # What it has got of a process before this one counts for a teacher party alone: it says the same again.
        ours = hello["met"] == self.instance or self.credentials.identity.role == "teacher"
        restarted = link.meet(hello["instance"], hello["received"] if ours else 0)
        self.emit(Connected(link.peer, hello["greeting"], restarted))

    async def end(self) -> None:
        """End what this party began, once its peers have heard that their last words arrived."""
        # A peer that waits to hear that its last word has arrived hears it.
        late = time.monotonic() + _LAST_SECONDS
        while any(link.stream and link.acknowledged < link.received for link in self.links.values()):
            if time.monotonic() > late:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
