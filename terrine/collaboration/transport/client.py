"""The side that connects, and connects again: a teacher party, and the student party to the guardian."""

import asyncio
import contextlib
import random
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

import grpc
import grpc.aio

from terrine.collaboration.transport.link import (
    Disconnected,
    Failed,
    Fault,
    Link,
    Refusal,
    SessionOffered,
    TransportError,
    checked_greeting,
)
from terrine.collaboration.transport.node import Node
from terrine.collaboration.transport.stream import GREETING_SECONDS, HELD_SECONDS, METHOD, OPTIONS, SERVICE, pump
from terrine.spans import span

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_LONGEST_OF_ALL, _SHARE_OF_ABSENCE = 30.0, 1 / 20
"""A peer that is away for hours is tried less often: as seldom as this share of its absence, and these seconds."""
_ANSWERED = 60.0
"""Seconds in which a peer is to answer at first. Where a thousand come at once they queue, and who gives up early and
comes again makes the queue longer."""
_ELSEWHERE = "has been in no session with us"


class _GivenUpError(Exception):
    """No other attempt is made; the text says why, and goes on where the peer and its address were named."""


class _Attempt(NamedTuple):
    """How one stream to the peer ended.

    Attributes:
        greeted: Whether the peer answered at all: then the connection is good for another stream.
        reached: Whether it was in our session.
    """

    greeted: bool
    reached: bool
    why: str


class Client:
    """Keeps a connection to one peer that listens.

    Args:
        address: Where the peer listens, host:port.
        convenes: Whether the peer decides which session it is; one that does not is asked again until it is in ours.
        patience: Seconds out of reach after which the peer is given up, and the host is told.
    """

    def __init__(self, node: Node, link: Link, address: str, convenes: bool, patience: float) -> None:
        self._node = node
        self._link = link
        self._address = address
        self._convenes = convenes
        self._patience = patience
        self._greeting = self._soonest = min(_ANSWERED, max(GREETING_SECONDS, patience))
        self._pause, self._since = _FIRST_PAUSE, time.monotonic()

    async def run(self) -> None:
        """Connect, and connect again, until this is cancelled or the peer has been out of reach for too long."""
        own = self._node.credentials
        tls = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        options = [*OPTIONS, ("grpc.ssl_target_name_override", self._link.peer)]
        try:
            while True:
                # The handshake is what costs: as long as the peer answers, stream after stream takes one connection.
                async with grpc.aio.secure_channel(self._address, tls, options=options) as channel:
                    while await self._attempt(channel):
                        pass
        except _GivenUpError as error:
            self._give_up(str(error))

    async def _attempt(self, channel: Any) -> bool:
        """One stream and the pause after it: whether the connection is good for another.

        Raises _GivenUpError where there is to be none.
        """
        changed = self._node.changed
        greeted, reached, why = await self._attend(channel.stream_stream(f"/{SERVICE}/{METHOD}")(), changed)
        if reached:
            self._pause, self._since = _FIRST_PAUSE, time.monotonic()
        away = time.monotonic() - self._since
        if away > self._patience:
            raise _GivenUpError(self._out_of_reach(why))
        with contextlib.suppress(TimeoutError):  # a session that begins is one that the peer may be in by now
            await asyncio.wait_for(changed.wait(), self._pause * (0.5 + random.random()))
        longest = max(_LONGEST_PAUSE, min(_LONGEST_OF_ALL, away * _SHARE_OF_ABSENCE))
        self._pause = min(2 * self._pause, longest)
        return greeted

    def _give_up(self, why: str) -> None:
        peer = self._link.peer
        self._node.emit(Failed(peer, TransportError(f"{peer!r} at {self._address}{why}")))

    def _out_of_reach(self, why: str) -> str:
        if why == _ELSEWHERE:
            return (
                f" is there, and {why} for {span(self._patience)}. Is the guardian running, and can it be reached from "
                "both?"
            )
        sentence = f" could not be reached for {span(self._patience)}: {why}. "
        expires = self._node.credentials.expires
        if datetime.now(UTC) > expires:
            return sentence + f"Our own certificate expired on {expires:%Y-%m-%d %H:%M} UTC: ask for another."
        return sentence + "Is it running, and is the address right?"

    async def _attend(self, call: Any, changed: asyncio.Event) -> _Attempt:
        """One stream to the peer, which ends when a session begins here (`changed`).

        Raises _GivenUpError where another attempt would end as this one did.
        """
        node, link = self._node, self._link
        greeted, reached, why = False, False, "the connection ended"
        try:
            said = node.session
            await call.write(node.hello(link))
            first = await asyncio.wait_for(call.read(), self._greeting)
            if first is not grpc.aio.EOF:
                hello = checked_greeting(first, node.terms, node.credentials.name)
                if (hello["name"], hello["role"]) != (link.peer, link.role):
                    raise Refusal(f"It says it is the {hello['role']} {hello['name']!r}.")
                greeted, self._greeting = True, self._soonest
                # A session that began here after our greeting is none that the peer heard of from us.
                if hello["session"] is None or not hello["session"] == said == node.session:
                    if self._convenes and hello["session"] is not None:
                        self._offer(hello)
                    await self._wait(call, changed)
                    return _Attempt(greeted, reached, _ELSEWHERE)
                reached = True
                # A stream that `begin` cancels must not take the loop of reconnections with it.
                link.stream = node.start(self._stay(call, hello))
                await asyncio.wait([link.stream])
                if link.stream.cancelled():
                    return _Attempt(greeted, reached, "a new session began")
                if isinstance(error := link.stream.exception(), Fault):
                    raise error
        except TimeoutError:
            why = f"it did not greet within {self._greeting:g} s"
            self._greeting = max(self._soonest, min(2 * self._greeting, self._patience))
            return _Attempt(greeted, reached, why)
        except Fault as error:
            raise _GivenUpError(f": {error}.") from error
        except Refusal as error:
            raise _GivenUpError(f": it is not for us. {error}") from error
        except (grpc.RpcError, grpc.aio.BaseError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            why = str(error)
        finally:
            ended = call.done()
            link.stream = None
            call.cancel()
        if ended:
            why = _meaning(await call.code(), await call.details() or "", link.peer)
        return _Attempt(greeted and not ended, reached, why)

    async def _wait(self, call: Any, changed: asyncio.Event) -> None:
        """Leave a stream open that is in no session of ours until something changes here or there."""
        ours, theirs = asyncio.ensure_future(changed.wait()), asyncio.ensure_future(call.read())
        try:
            await asyncio.wait([ours, theirs], timeout=HELD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (ours, theirs):
                one.cancel()
            await asyncio.gather(ours, theirs, return_exceptions=True)

    def _offer(self, hello: dict[str, Any]) -> None:
        """Tell the host of the session that the peer is in, once."""
        if self._link.offered != hello["session"]:
            self._link.offered = hello["session"]
            self._node.emit(SessionOffered(self._link.peer, hello["session"], hello["greeting"]))

    async def _stay(self, call: Any, hello: dict[str, Any]) -> None:
        self._node.meet(self._link, hello)
        try:
            await pump(self._node, self._link, call.read, call.write)
        finally:
            self._node.emit(Disconnected(self._link.peer, "the connection ended"))


def _meaning(code: grpc.StatusCode, details: str, peer: str) -> str:
    """What the end of a stream most likely means, in words; raises _GivenUpError where it will not get better."""
    match code:
        case grpc.StatusCode.OK:
            return "the connection ended"
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.INVALID_ARGUMENT:
            raise _GivenUpError(f": it refused us. {details}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            raise _GivenUpError(f": it took no message of that size: {details}.")
    if "CERTIFICATE_VERIFY_FAILED" in details:
        raise _GivenUpError(": its certificate was not signed by the authority we trust, or it has expired.")
    if "Hostname Verification" in details or "Peer name" in details:
        raise _GivenUpError(f": its certificate is not that of {peer!r}: another party listens at this address.")
    if "tlsv1" in details or "TLSV1" in details or "SSLV3_ALERT" in details or "CERTIFICATE" in details.upper():
        raise _GivenUpError(": it did not accept our certificate: it trusts another authority, or ours has expired.")
    return (details or str(code))[:200]
