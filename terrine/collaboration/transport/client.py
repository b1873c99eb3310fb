"""The side that connects, and connects again: a teacher party, and the student party to the guardian."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from datetime import UTC, datetime
from typing import Any

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
from terrine.collaboration.transport.stream import GREETING_SECONDS, METHOD, OPTIONS, SERVICE, pump
from terrine.spans import span

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_LONGEST_OF_ALL, _SHARE_OF_ABSENCE = 30.0, 1 / 20
"""A peer that is away for hours is tried less often: as seldom as this share of its absence, and these seconds."""
_ELSEWHERE = "has been in no session with us"


class _GivenUpError(Exception):
    """Another attempt to connect would end as the last one did; the text says why."""


class Client:
    """Keeps a connection to one peer that listens.

    Args:
        node: The party that connects.
        link: The link to the peer.
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

    async def run(self) -> None:
        """Connect, and connect again, until this is cancelled or the peer has been out of reach for too long."""
        own = self._node.credentials
        tls = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        options = [*OPTIONS, ("grpc.ssl_target_name_override", self._link.peer)]
        pause, since = _FIRST_PAUSE, time.monotonic()
        while True:
            changed = self._node.changed
            try:
                async with grpc.aio.secure_channel(self._address, tls, options=options) as channel:
                    call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
                    reached, why = await self._attend(call)
            except _GivenUpError as error:
                return self._give_up(f": {error}")
            if reached:
                pause, since = _FIRST_PAUSE, time.monotonic()
            away = time.monotonic() - since
            if away > self._patience:
                return self._give_up(self._out_of_reach(why))
            with contextlib.suppress(TimeoutError):  # a session that begins is one that the peer may be in by now
                await asyncio.wait_for(changed.wait(), pause * (0.5 + random.random()))
            pause = min(2 * pause, max(_LONGEST_PAUSE, min(_LONGEST_OF_ALL, away * _SHARE_OF_ABSENCE)))

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

    async def _attend(self, call: Any) -> tuple[bool, str]:
        """One stream to the peer: whether it was one in our session, and why it ended.

        Raises _GivenUpError where another attempt would end as this one did.
        """
        node, link = self._node, self._link
        reached, why = False, "the connection ended"
        try:
            await call.write(node.hello(link))
            first = await asyncio.wait_for(call.read(), GREETING_SECONDS)
            if first is not grpc.aio.EOF:
                hello = checked_greeting(first, node.terms, node.credentials.name)
                if (hello["name"], hello["role"]) != (link.peer, link.role):
                    raise Refusal(f"It says it is the {hello['role']} {hello['name']!r}.")
                if hello["session"] is None or hello["session"] != node.session:
                    if self._convenes and hello["session"] is not None:
                        await self._offer(hello)
                    return False, _ELSEWHERE
                reached = True
                # A stream that `begin` cancels must not take the loop of reconnections with it.
                link.stream = node.start(self._stay(call, hello))
                await asyncio.wait([link.stream])
                if link.stream.cancelled():
                    return True, "a new session began"
                if isinstance(error := link.stream.exception(), Fault):
                    raise error
        except TimeoutError:
            return reached, f"it did not greet within {GREETING_SECONDS:g} s"
        except Fault as error:
            raise _GivenUpError(f"{error}.") from error
        except Refusal as error:
            raise _GivenUpError(f"it is not for us. {error}") from error
        except (grpc.RpcError, grpc.aio.BaseError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            why = str(error)
        finally:
            ended = call.done()
            link.stream = None
            call.cancel()
        if ended:
            why = _meaning(await call.code(), await call.details() or "", link.peer)
        return reached, why

    async def _offer(self, hello: dict[str, Any]) -> None:
        """Tell the host of the session that the peer is in, once, and give it a moment to take it over."""
        changed = self._node.changed
        if self._link.offered != hello["session"]:
            self._link.offered = hello["session"]
            self._node.emit(SessionOffered(self._link.peer, hello["session"], hello["greeting"]))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), _LONGEST_PAUSE)

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
            raise _GivenUpError(f"it refused us. {details}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            raise _GivenUpError(f"it took no message of that size: {details}.")
    if "CERTIFICATE_VERIFY_FAILED" in details:
        raise _GivenUpError("its certificate was not signed by the authority we trust, or it has expired.")
    if "Hostname Verification" in details or "Peer name" in details:
        raise _GivenUpError(f"its certificate is not that of {peer!r}: another party listens at this address.")
    if "tlsv1" in details or "TLSV1" in details or "SSLV3_ALERT" in details or "CERTIFICATE" in details.upper():
        raise _GivenUpError("it did not accept our certificate: it trusts another authority, or ours has expired.")
    return (details or str(code))[:200]
