"""One stream of messages between two parties: what connections are made with, and how a link is pumped over one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from terrine.collaboration.protocol.messages import LARGEST_FRAME
from terrine.collaboration.transport.link import HEADER, Arrived, Fault, Link, parsed, parsed_note
from terrine.collaboration.transport.node import Node

SERVICE, METHOD = "terrine.Party", "Exchange"
GREETING_SECONDS = 10.0
HELD_SECONDS = 5.0
"""How long a stream stays open between parties that are in no session together: until one of them begins one."""

OPTIONS = [
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
    # Reconnecting is done here, where it is known for how long; and so is giving up a handshake: this is how long gRPC
    # lets one take, and where many come at once, those that are broken off and begun again leave no time for others.
    ("grpc.min_reconnect_backoff_ms", 600_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]

Read = Callable[[], Awaitable[Any]]
Write = Callable[[bytes], Awaitable[None]]


async def pump(node: Node, link: Link, read: Read, write: Write) -> None:
    """Read and write until the peer ends the stream.

    Raises Fault where the peer does not keep to the protocol, and whatever ends a stream of gRPC.
    """
    link.cursor, link.acknowledged = 0, link.received
    link.wake.set()
    loop = asyncio.get_running_loop()
    reading = loop.create_task(read_messages(node, link, read))
    writing = loop.create_task(write_messages(link, write))
    try:
        done, _ = await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        reading.cancel()
        writing.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)


async def read_messages(node: Node, link: Link, read: Read) -> None:
    """Hand on what a peer sends, in order, for as long as the link's session lasts."""
    session, beginning = node.session, link.beginnings
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
        link.received = number
        link.wake.set()
        await node.arrived(Arrived(link.peer, session, content))


async def write_messages(link: Link, write: Write) -> None:
    """Send what a link holds, and acknowledge what it received, for as long as its session lasts."""
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
