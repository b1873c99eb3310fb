"""Frames between parties: gRPC streams of raw bytes under mutual TLS.

A party that others connect to (the guardian, the student party) listens; a teacher party connects and needs no open
port. Who a peer is, is said by its certificate and by nothing else. Between two parties there is one link
(`terrine.collaboration.link`): frames arrive once and in order, also when the connection breaks and is made again.
What ends a link for good is a new session: then both sides begin anew.

    wire = Wire(credentials, terms, patience=60)
    wire.listen("0.0.0.0:7801", {"hospital-1": "teacher", "student": "student"})
    wire.begin(session)
    event = wire.next(timeout=1.0)          # Connected, Arrived, Disconnected, Malformed, ... or None
    wire.send("student", frame)

Formal guarantees:
- an event's sender is the name in a certificate that the authority signed, for the role it was admitted in;
- no message above `LARGEST_FRAME` and a few bytes is ever held; of messages that nobody has looked at, a bounded
  number of bytes is held, and the network holds the sender back;
- every wait ends: with what was waited for, or with an error in a sentence once nothing has moved for `patience`
  seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import random
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, TypeVar

# Before gRPC is loaded: its library writes every refused handshake to standard error, in words of its own.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

from terrine.collaboration.credentials import CredentialError, Credentials, Role, identity_of
from terrine.collaboration.link import (
    HEADER,
    LARGEST_NOTE,
    Arrived,
    Connected,
    Disconnected,
    Event,
    Failed,
    Fault,
    Link,
    Malformed,
    PeerRestarted,
    Refusal,
    SessionOffered,
    TransportError,
    checked_greeting,
    greeting_message,
    parsed,
    parsed_note,
)
from terrine.collaboration.messages import LARGEST_FRAME

_SERVICE, _METHOD = "terrine.Party", "Exchange"
_UNACKNOWLEDGED = 48 * 2**20  # bytes a link keeps before whoever sends must wait
_UNREAD = 48 * 2**20  # bytes that wait for the host before peers must wait
_GREETING_SECONDS = 10.0
_LAST_SECONDS = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_ELSEWHERE = "has been in no session with us"

_OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_FRAME + HEADER),
    ("grpc.max_send_message_length", LARGEST_FRAME + HEADER),
    # A cable that was cut closes no connection: only pings find out.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 4_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Reconnecting is done here, where it is known for how long.
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]
_SERVER_OPTIONS = [*_OPTIONS, ("grpc.so_reuseport", 0)]

Result = TypeVar("Result")
Read = Callable[[], Awaitable[Any]]
Write = Callable[[bytes], Awaitable[None]]


class _GivenUpError(Exception):
    """Another attempt to connect would end as the last one did; the text says why."""


class Wire:
    """All links of one party. Its methods are for one thread, the host's; the network has a thread of its own.

    Args:
        credentials: Whom this party shows itself as, and whom it trusts.
        terms: What all parties agreed on, JSON values: a peer with other terms is refused, with what differs.
        patience: Seconds after which a client that cannot connect gives up, and a sender that may not send.
    """

    def __init__(self, credentials: Credentials, terms: Mapping[str, Any], *, patience: float = 60.0) -> None:
        self.instance = secrets.token_hex(8)
        self.session: str | None = None
        self._credentials = credentials
        self._terms = json.loads(json.dumps(terms))
        self._patience = patience
        self._greeting: dict[str, Any] = {}
        self._links: dict[str, Link] = {}
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._unread = 0
        self._loop = asyncio.new_event_loop()
        self._space = asyncio.Event()
        self._space.set()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: grpc.aio.Server | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._thread.start()

    # What the host's thread calls.

    def listen(self, address: str, expected: Mapping[str, Role]) -> int:
        """Wait for these peers at `address`, host:port, port 0 for any free one; return the port.

        Raises TransportError when the address cannot be used.
        """
        return self._call(self._listen(address, dict(expected)), 30.0)

    def connect(self, peer: str, role: Role, address: str, *, convenes: bool = False) -> None:
        """Connect to a peer that listens at `address`, and connect again for as long as this wire is open.

        `convenes`: the peer decides which session it is; a peer that does not is asked again until it is in ours.
        """

        async def begin() -> None:
            link = self._links.setdefault(peer, Link(peer, role))
            self._start(self._dial(link, address, convenes))

        self._call(begin(), 10.0)

    def greet(self, **content: Any) -> None:
        """Say this, JSON values, in greetings from now on."""

        async def change() -> None:
            self._greeting = json.loads(json.dumps(content))

        self._call(change(), 10.0)

    def begin(self, session: str) -> None:
        """Begin a session: what was under way on any link is dropped on both sides."""

        async def change() -> None:
            self.session = session
            for link in self._links.values():
                link.reset()
                if link.stream is not None:
                    link.stream.cancel()
            self._changed.set()
            self._changed = asyncio.Event()

        self._call(change(), 10.0)

    def send(self, to: str, frame: bytes) -> None:
        """Send a frame of the current session; waits while too much is on its way.

        Raises TransportError for a frame that is too large, an unknown peer, or one that takes nothing for `patience`
        seconds; PeerRestarted for a guardian or student party that was started again in this session.
        """
        if len(frame) > LARGEST_FRAME:
            raise TransportError(f"A frame of {len(frame):,} bytes for {to} is larger than {LARGEST_FRAME:,} bytes.")
        self._put(to, b"F", frame)

    def renew(self, peer: str) -> None:
        """Send to a peer that was started again, in this session, from the first frame on."""

        async def change() -> None:
            self._links[peer].restarted = False

        self._call(change(), 10.0)

    def note(self, to: str, **content: Any) -> None:
        """Send a note, JSON values, in order with the frames."""
        body = json.dumps(content).encode()
        if len(body) > LARGEST_NOTE:
            raise TransportError(f"A note of {len(body):,} bytes for {to} is larger than {LARGEST_NOTE:,} bytes.")
        self._put(to, b"N", body)

    def next(self, timeout: float) -> Event | None:
        """Return what happened next, or None when nothing did for `timeout` seconds."""
        try:
            event = self._inbox.get(timeout=max(timeout, 0.0))
        except queue.Empty:
            return None
        if isinstance(event, Arrived):
            size = len(event.content) if isinstance(event.content, bytes) else 256
            self._loop.call_soon_threadsafe(self._consumed, size)
        return event

    def flush(self, peer: str, timeout: float) -> bool:
        """Wait until a peer has acknowledged everything; say whether it did."""

        async def wait() -> bool:
            link = self._links.get(peer)
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

        return self._call(wait(), timeout + 5.0)

    def close(self) -> None:
        """End all connections. What a peer has not acknowledged is lost to it."""
        if self._closed:
            return
        self._closed = True

        async def end() -> None:
            # A peer that waits to hear that its last word has arrived hears it.
            late = time.monotonic() + _LAST_SECONDS
            while any(link.stream and link.acknowledged < link.received for link in self._links.values()):
                if time.monotonic() > late:
                    break
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.02)
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._server is not None:
                await self._server.stop(0.2)

        with contextlib.suppress(TimeoutError, TransportError):
            self._call(end(), 10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # What happens in the network's thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, Result], timeout: float) -> Result:
        future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise TransportError(f"The network thread did not answer within {timeout:g} s.") from None

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _put(self, to: str, kind: bytes, body: bytes) -> None:
        async def put() -> None:
            link = self._links.get(to)
            if link is None:
                raise TransportError(f"There is no party {to!r} to send to.")
            session, end = self.session, time.monotonic() + self._patience
            if link.restarted:
                raise PeerRestarted(f"{to!r} was started again in the middle of a session.")
            while link.kept + len(body) > _UNACKNOWLEDGED and link.outgoing:
                link.room.clear()
                try:
                    await asyncio.wait_for(link.room.wait(), max(0.0, end - time.monotonic()))
                except TimeoutError:
                    raise TransportError(
                        f"{to!r} has taken nothing for {self._patience:g} s: it was stopped, or the network is cut."
                    ) from None
                if self.session != session:
                    return
                if link.restarted:
                    raise PeerRestarted(f"{to!r} was started again in the middle of a session.")
                end = time.monotonic() + self._patience
            link.put(kind, body)

        self._call(put(), 2 * self._patience + 86_400.0)

    def _emit(self, event: Event) -> None:
        self._inbox.put(event)

    def _consumed(self, size: int) -> None:
        self._unread -= size
        if self._unread < _UNREAD:
            self._space.set()

    def _hello(self, link: Link) -> bytes:
        identity = self._credentials.identity
        return greeting_message(
            name=identity.name,
            role=identity.role,
            instance=self.instance,
            session=self.session,
            met=link.instance,
            received=link.received,
            terms=self._terms,
            greeting=self._greeting,
        )

    def _meet(self, link: Link, hello: dict[str, Any]) -> bool:
        """Take note of a peer's greeting; say whether it is another process than before in this session."""
        # What it has got of a process before this one counts for a teacher party alone: it says the same again.
        ours = hello["met"] == self.instance or self._credentials.identity.role == "teacher"
        return link.meet(hello["instance"], hello["received"] if ours else 0)

    async def _listen(self, address: str, expected: dict[str, Role]) -> int:
        for name, role in expected.items():
            self._links.setdefault(name, Link(name, role))

        async def exchange(_requests: Any, context: Any) -> None:
            await self._serve(context, expected)

        server = grpc.aio.server(options=_SERVER_OPTIONS, maximum_concurrent_rpcs=4 * len(expected) + 16)
        handler = grpc.stream_stream_rpc_method_handler(exchange)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        own = self._credentials
        tls = grpc.ssl_server_credentials(
            [(own.key, own.certificate)], root_certificates=own.authority, require_client_auth=True
        )
        try:
            port = server.add_secure_port(address, tls)
        except RuntimeError as error:
            port = 0
            cause: Exception | None = error
        else:
            cause = None
        if port == 0:
            raise TransportError(
                f"{own.name} cannot listen at {address}: the address is not this machine's or the port is taken. Set "
                "another."
            ) from cause
        await server.start()
        self._server = server
        return port

    async def _serve(self, context: Any, expected: dict[str, Role]) -> None:
        """One stream of a peer that connected to us."""
        known = _certificates(context)
        try:
            if not known:
                raise Refusal("It showed no certificate.")
            identity = identity_of(known[0])
            if expected.get(identity.name) is None:
                raise Refusal(f"{identity.name!r} takes no part in this collaboration.")
            if expected[identity.name] != identity.role:
                raise Refusal(
                    f"{identity.name!r} is to be a {expected[identity.name]} here, and its certificate is one for a "
                    f"{identity.role}."
                )
        except (Refusal, CredentialError) as error:
            self._emit(Malformed(_stranger(known, context), f"It was refused. {error}"))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{self._credentials.name}: {error}")
        name = identity.name
        link = self._links[name]
        try:
            try:
                first = await asyncio.wait_for(context.read(), _GREETING_SECONDS)
            except TimeoutError:
                raise Fault(f"it did not greet within {_GREETING_SECONDS:g} s") from None
            hello = checked_greeting(first, self._terms)
            if hello["name"] != name or hello["role"] != identity.role:
                raise Refusal(
                    f"The certificate is that of the {identity.role} {name!r}, and the message says it is from the "
                    f"{hello['role']} {hello['name']!r}: a party speaks for itself, in one role."
                )
        except Refusal as error:
            self._emit(Malformed(name, f"{name!r} was refused. {error}"))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{self._credentials.name}: {error}")
        except Fault as error:
            self._emit(Malformed(name, f"A connection of {name!r} was closed: {error}."))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{self._credentials.name}: {error}.")
        except (grpc.aio.BaseError, asyncio.CancelledError):
            return
        await self._replace_stream(link)
        connected = False
        try:
            await context.write(self._hello(link))
            if hello["session"] != self.session or self.session is None:
                return  # it will come back when it has taken over ours, or we have taken over the guardian's
            connected = True
            self._emit(Connected(name, hello["greeting"], self._meet(link, hello)))
            await self._pump(link, context.read, context.write)
        except Fault as error:
            self._emit(Malformed(name, f"A connection of {name!r} was closed: {error}."))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{self._credentials.name}: {error}.")
        except asyncio.CancelledError:
            pass
        except (grpc.RpcError, grpc.aio.BaseError, grpc.aio.UsageError, asyncio.InvalidStateError):
            pass
        finally:
            if link.stream is asyncio.current_task():
                link.stream = None
            if connected:
                self._emit(Disconnected(name, "the connection ended"))

    async def _replace_stream(self, link: Link) -> None:
        """Make the current task the link's only stream: the newest connection is the one that lives."""
        old, link.stream = link.stream, asyncio.current_task()
        if old is not None and old is not link.stream:
            old.cancel()
            await asyncio.wait([old], timeout=5.0)

    async def _dial(self, link: Link, address: str, convenes: bool) -> None:
        """Connect, and connect again, until the wire is closed or the peer has been out of reach for too long."""
        own = self._credentials
        tls = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", link.peer)]
        pause, since = _FIRST_PAUSE, time.monotonic()
        while True:
            try:
                async with grpc.aio.secure_channel(address, tls, options=options) as channel:
                    call = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")()
                    reached, why = await self._attend(link, call, convenes)
            except _GivenUpError as error:
                return self._emit(Failed(link.peer, TransportError(f"{link.peer!r} at {address}: {error}")))
            if reached:
                pause, since = _FIRST_PAUSE, time.monotonic()
            if time.monotonic() - since > self._patience:
                sentence = f"{link.peer!r} at {address} could not be reached for {self._patience:g} s: {why}. "
                if why == _ELSEWHERE:
                    sentence = f"{link.peer!r} at {address} is there, and {why} for {self._patience:g} s. "
                    sentence += "Is the guardian running, and can it be reached from both?"
                elif datetime.now(UTC) > own.expires:
                    sentence += f"Our own certificate expired on {own.expires:%Y-%m-%d %H:%M} UTC: ask for another."
                else:
                    sentence += "Is it running, and is the address right?"
                return self._emit(Failed(link.peer, TransportError(sentence)))
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _attend(self, link: Link, call: Any, convenes: bool) -> tuple[bool, str]:
        """One stream to a peer that we connected to: whether it was one in our session, and why it ended.

        Raises _GivenUpError where another attempt would end as this one did.
        """
        reached, why = False, "the connection ended"
        try:
            await call.write(self._hello(link))
            first = await asyncio.wait_for(call.read(), _GREETING_SECONDS)
            if first is not grpc.aio.EOF:
                hello = checked_greeting(first, self._terms)
                if (hello["name"], hello["role"]) != (link.peer, link.role):
                    raise Refusal(f"It says it is the {hello['role']} {hello['name']!r}.")
                if hello["session"] is None or hello["session"] != self.session:
                    if convenes and hello["session"] is not None:
                        await self._offer(link, hello)
                    return False, _ELSEWHERE
                reached = True
                # A stream that `begin` cancels must not take the loop of reconnections with it.
                link.stream = self._start(self._stay(link, call, hello))
                await asyncio.wait([link.stream])
                if link.stream.cancelled():
                    return True, "a new session began"
                if isinstance(error := link.stream.exception(), Fault):
                    raise error
        except TimeoutError:
            return reached, f"it did not greet within {_GREETING_SECONDS:g} s"
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

    async def _offer(self, link: Link, hello: dict[str, Any]) -> None:
        """Tell the host of the session that the peer is in, once, and give it a moment to take it over."""
        changed = self._changed
        if link.offered != hello["session"]:
            link.offered = hello["session"]
            self._emit(SessionOffered(link.peer, hello["session"], hello["greeting"]))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), _LONGEST_PAUSE)

    async def _stay(self, link: Link, call: Any, hello: dict[str, Any]) -> None:
        self._emit(Connected(link.peer, hello["greeting"], self._meet(link, hello)))
        try:
            await self._pump(link, call.read, call.write)
        finally:
            self._emit(Disconnected(link.peer, "the connection ended"))

    async def _pump(self, link: Link, read: Read, write: Write) -> None:
        """Read and write until the peer ends the stream."""
        link.cursor, link.acknowledged = 0, link.received
        link.wake.set()
        reading = self._loop.create_task(self._read(link, read))
        writing = self._loop.create_task(self._write(link, write))
        try:
            done, _ = await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def _read(self, link: Link, read: Read) -> None:
        session, beginning = self.session, link.beginnings
        assert session is not None
        while True:
            message = await read()
            # A message may be there already when a new session cancels this: its number counts in no other one.
            if message is grpc.aio.EOF or link.beginnings != beginning:
                return
            kind, number, body = parsed(message)
            if kind == b"A":
                link.trim(number)
                continue
            if number != link.received + 1:
                raise Fault(f"message {number} came where {link.received + 1} was due: it was replayed, or one is lost")
            content = body if kind == b"F" else parsed_note(body)
            self._unread += len(body) if kind == b"F" else 256
            link.received = number
            link.wake.set()
            self._emit(Arrived(link.peer, session, content))
            if self._unread >= _UNREAD:
                self._space.clear()
                await self._space.wait()

    async def _write(self, link: Link, write: Write) -> None:
        beginning = link.beginnings
        while link.beginnings == beginning:
            link.wake.clear()
            if link.acknowledged < link.received:
                number = link.received
                await write(b"A" + number.to_bytes(8, "big"))
                if link.beginnings != beginning:
                    return
                link.acknowledged = max(link.acknowledged, number)
            if link.cursor < len(link.outgoing):
                number, kind, body = link.outgoing[link.cursor]
                link.cursor += 1
                await write(b"".join((kind, number.to_bytes(8, "big"), body)))
                continue
            await link.wake.wait()


def _certificates(context: Any) -> list[bytes]:
    return list(context.auth_context().get("x509_pem_cert", []))


def _stranger(certificates: list[bytes], context: Any) -> str:
    with contextlib.suppress(CredentialError):
        return identity_of(certificates[0]).name if certificates else str(context.peer())
    return str(context.peer())


def _meaning(code: grpc.StatusCode, details: str, peer: str) -> str:
    """What the end of a stream most likely means, in words; raises _GivenUpError where it will not get better."""
    match code:
        case grpc.StatusCode.OK:
            return "the connection ended"
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.INVALID_ARGUMENT:
            raise _GivenUpError(f"it refused us. {details}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise _GivenUpError(f"it took no message of that size: {details}.")
    if "CERTIFICATE_VERIFY_FAILED" in details:
        raise _GivenUpError("its certificate was not signed by the authority we trust, or it has expired.")
    if "Hostname Verification" in details or "Peer name" in details:
        raise _GivenUpError(f"its certificate is not that of {peer!r}: another party listens at this address.")
    if "tlsv1" in details or "TLSV1" in details or "SSLV3_ALERT" in details or "CERTIFICATE" in details.upper():
        raise _GivenUpError("it did not accept our certificate: it trusts another authority, or ours has expired.")
    return (details or str(code))[:200]
