"""Frames between parties: gRPC streams of raw bytes under mutual TLS.

A party that others connect to (the guardian, the student party) listens; a teacher party connects and needs no open
port. Who a peer is, is said by its certificate and by nothing else. Between two parties there is one link
(`terrine.collaboration.transport.link`): frames arrive once and in order, also when the connection breaks and is made
again. What ends a link for good is a new session: then both sides begin anew.

    with Wire(credentials, terms, patience=60) as wire:
        wire.listen("0.0.0.0:7801", {"hospital-1": "teacher", "student": "student"})
        wire.begin(session)
        event = wire.next(timeout=1.0)      # Connected, Arrived, Disconnected, Malformed, ... or None
        wire.send("student", frame)

`Wire` is what the host's thread holds. The network's thread (`network`) has a `Node` (what all connections
share), a `Server` and `Client`s, and pumps each `Link` over the stream of the moment.

Formal guarantees:
- an event's sender is the name in a certificate that the authority signed, for the role it was admitted in;
- no message above `LARGEST_FRAME` and a few bytes is ever held; of messages that nobody has looked at, a bounded
  number of bytes is held, and the network holds the sender back;
- every wait ends: with what was waited for, or with an error in a sentence once nothing has moved for `patience`
  seconds.
"""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from terrine.collaboration.protocol.messages import LARGEST_FRAME
from terrine.collaboration.transport.client import Client
from terrine.collaboration.transport.credentials import Credentials, Role
from terrine.collaboration.transport.link import LARGEST_NOTE, Arrived, LinkEvent, TransportError
from terrine.collaboration.transport.network import Network
from terrine.collaboration.transport.node import Node, weight
from terrine.collaboration.transport.server import Server

_LONGEST_SEND = 86_400.0
_LONGEST_CALL = 60.0  # seconds in which the thread answers also where many parties begin at once

Result = TypeVar("Result")


class Wire:
    """All links of one party, for as long as it is entered. Its methods are for one thread, the host's; the network has
    a thread of its own.

    Args:
        credentials: Whom this party shows itself as, and whom it trusts.
        terms: What all parties agreed on, JSON values: a peer with other terms is refused, with what differs.
        patience: Seconds after which a client that cannot connect gives up, and a sender that may not send.
    """

    def __init__(self, credentials: Credentials, terms: Mapping[str, Any], *, patience: float = 60.0) -> None:
        self._inbox: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()
        self._node = Node(credentials, terms, self._inbox.put)
        self._patience = patience
        self._server: Server | None = None
        self._network: Network

    @property
    def session(self) -> str | None:
        """The session this party is in."""
        return self._node.session

    def listen(self, address: str, expected: Mapping[str, Role]) -> int:
        """Wait for these peers at `address`, host:port, port 0 for any free one; return the port.

        Raises TransportError when the address cannot be used.
        """

        async def begin() -> int:
            self._server = Server(self._node, expected)
            return await self._server.listen(address)

        return self._call(begin(), _LONGEST_CALL)

    def connect(self, peer: str, role: Role, address: str, *, convenes: bool = False) -> None:
        """Connect to a peer that listens at `address`, and connect again for as long as this wire is open.

        `convenes`: the peer decides which session it is; a peer that does not is asked again until it is in ours.
        """

        async def begin() -> None:
            link = self._node.link(peer, role)
            self._node.start(Client(self._node, link, address, convenes, self._patience).run())

        self._call(begin(), _LONGEST_CALL)

    def greet(self, **content: Any) -> None:
        """Say this, JSON values, in greetings from now on."""

        async def change() -> None:
            self._node.greeting = json.loads(json.dumps(content))

        self._call(change(), _LONGEST_CALL)

    def begin(self, session: str) -> None:
        """Begin a session: what was under way on any link is dropped on both sides."""

        async def change() -> None:
            self._node.begin(session)

        self._call(change(), _LONGEST_CALL)

    def send(self, to: str, frame: bytes) -> None:
        """Send a frame of the current session; waits while too much is on its way.

        Raises TransportError for a frame that is too large, an unknown peer, or one that takes nothing for `patience`
        seconds; PeerRestarted for a guardian or student party that was started again in this session.
        """
        if len(frame) > LARGEST_FRAME:
            raise TransportError(f"A frame of {len(frame):,} bytes for {to} is larger than {LARGEST_FRAME:,} bytes.")
        self._put(to, b"F", frame)

    def renew(self, peer: str) -> None:
        """Send to a peer that was started again, in this session, from the first frame on; to one that never came,
        nothing changes."""

        async def change() -> None:
            if peer in self._node.links:
                self._node.links[peer].restarted = False

        self._call(change(), _LONGEST_CALL)

    def note(self, to: str, **content: Any) -> None:
        """Send a note, JSON values, in order with the frames."""
        body = json.dumps(content).encode()
        if len(body) > LARGEST_NOTE:
            raise TransportError(f"A note of {len(body):,} bytes for {to} is larger than {LARGEST_NOTE:,} bytes.")
        self._put(to, b"N", body)

    def next(self, timeout: float) -> LinkEvent | None:
        """Return what happened next, or None when nothing did for `timeout` seconds."""
        try:
            event = self._inbox.get(timeout=max(timeout, 0.0))
        except queue.Empty:
            return None
        if isinstance(event, Arrived):
            self._network.loop.call_soon_threadsafe(self._node.consumed, weight(event))
        return event

    def flush(self, peer: str, timeout: float) -> bool:
        """Wait until a peer has acknowledged everything; say whether it did."""
        return self._call(self._node.acknowledged(peer, timeout), timeout + 5.0)

    def __enter__(self) -> Wire:
        self._network = Network.enter()
        return self

    def __exit__(self, *exception: object) -> None:
        """End all connections. What a peer has not acknowledged is lost to it."""

        async def end() -> None:
            await self._node.end()
            if self._server is not None:
                await self._server.stop()

        with contextlib.suppress(TimeoutError, TransportError):
            self._call(end(), 10.0)
        self._network.leave()

    def _call(self, work: Coroutine[Any, Any, Result], timeout: float) -> Result:
        return self._network.call(work, timeout)

    def _put(self, to: str, kind: bytes, body: bytes) -> None:
        self._call(self._node.put(to, kind, body, self._patience), 2 * self._patience + _LONGEST_SEND)
