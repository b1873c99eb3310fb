"""A link between two parties: numbered messages that arrive once and in order, over connections that may break.

Each side keeps what the other has not acknowledged, and says in its greeting how much it has; so a connection that is
made again goes on where the last one ended. On the wire a message is one byte of kind, a number of 8 bytes, and a
body. `H` greets (JSON), `F` is a frame, `N` a note between hosts (JSON), `A` acknowledges. Frames and notes are
numbered from 1 in each direction.
"""

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from terrine.collaboration.protocol.messages import LARGEST_FRAME
from terrine.collaboration.transport.credentials import Role
from terrine.errors import TerrineError

PROTOCOL = 1
HEADER = 9
LARGEST_GREETING = 2**20
LARGEST_NOTE = 2**20
_MOST_DIFFERENCES = 8
_FIELDS = ("name", "role", "instance", "session", "met", "received", "greeting")


class TransportError(TerrineError):
    """A peer could not be reached, refused this party, or did not go on."""


class PeerRestarted(TransportError):
    """The peer was started again in the middle of a session; only a new session goes on."""


class Connected(NamedTuple):
    """A peer is there, and in the same session.

    Attributes:
        greeting: What its host says with every connection (`Wire.greet`).
        restarted: Whether it is another process than the one before in this session.
    """

    peer: str
    greeting: dict[str, Any]
    restarted: bool


class Disconnected(NamedTuple):
    """A connection ended; a client is making another by itself."""

    peer: str
    reason: str


class SessionOffered(NamedTuple):
    """The party that convenes is in another session than this one: `Wire.begin` with it goes on."""

    peer: str
    session: str
    greeting: dict[str, Any]


class Asked(NamedTuple):
    """A peer that connects to us is in another session than this party, or in none: it asks which one we are in.

    Attributes:
        session: The session it is in; None for none.
        greeting: What its host says with every connection.
    """

    peer: str
    session: str | None
    greeting: dict[str, Any]


class Arrived(NamedTuple):
    """A frame (bytes) or a note (a dict) of the session that was current when it arrived."""

    peer: str
    session: str
    content: bytes | dict[str, Any]


class Malformed(NamedTuple):
    """A peer sent something that is no message of a link; the connection was closed and nothing was used."""

    peer: str
    reason: str


class Failed(NamedTuple):
    """A client gave up: the peer refused it, or was not reached in time."""

    peer: str
    error: TransportError


LinkEvent = Connected | Disconnected | SessionOffered | Asked | Arrived | Malformed | Failed


class Fault(Exception):
    """What a peer sent is no message; the text says why."""


class Refusal(Exception):
    """A peer is not welcome; the text is the sentence it is told."""


@dataclass
class Link:
    """One peer: what it has not acknowledged, and how much of its own has arrived.

    Attributes:
        outgoing: Number, kind and body of messages that it has not acknowledged.
        number: Of the last message.
        kept: Bytes in `outgoing`.
        held: How much of what is still to be numbered it has already, from before this process was started again.
        received: Number of its last message that arrived.
        acknowledged: Number of its last message for which that was said.
        cursor: Place in `outgoing` of the next message to write on the connection there is.
        instance: Which of its processes was met in this session.
        restarted: Whether another one was met later, so that frames may be lost.
        wake, room: Set when there is something to write, and something less in `outgoing`.
        stream: What serves the connection there is.
        offered: The session it was last said to be in.
        beginnings: How often it began anew: what a connection of before still brings belongs to nothing.
    """

    peer: str
    role: Role
    outgoing: deque[tuple[int, bytes, bytes]] = field(default_factory=deque)
    number: int = 0
    kept: int = 0
    held: int = 0
    received: int = 0
    acknowledged: int = 0
    cursor: int = 0
    instance: str | None = None
    restarted: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    stream: asyncio.Task[Any] | None = None
    offered: str | None = None
    beginnings: int = 0

    def reset(self) -> None:
        """Begin anew."""
        self.beginnings += 1
        self.outgoing.clear()
        self.number = self.kept = self.held = self.received = self.acknowledged = self.cursor = 0
        self.offered = self.instance = None
        self.restarted = False
        self.wake.set()
        self.room.set()

    def put(self, kind: bytes, body: bytes) -> None:
        """Number a message and keep it until it is acknowledged."""
        self.number += 1
        if self.number <= self.held:
            return
        self.kept += len(body)
        self.outgoing.append((self.number, kind, body))
        self.wake.set()

    def meet(self, instance: str, received: int) -> bool:
        """Take note of a peer's greeting; say whether it is another process than before.

        A teacher party that was started again sends the same messages again, so what we have got of it is not sent
        twice, and what it has not got is numbered anew. To others everything is to be said again (`Wire.renew`), if
        the session can go on at all.
        """
        again = self.instance not in (None, instance)
        self.instance = instance
        if again and self.role != "teacher":
            self.outgoing.clear()
            self.number = self.kept = self.received = self.acknowledged = self.cursor = 0
            self.restarted = True
            self.room.set()
        elif again:
            self.outgoing = deque((place, kind, body) for place, (_, kind, body) in enumerate(self.outgoing, 1))
            self.number, self.cursor = len(self.outgoing), 0
        self.held = received
        self.trim(min(received, self.number))
        return again

    def trim(self, number: int) -> None:
        """Forget what the peer has."""
        if number > self.number:
            raise Fault(f"it acknowledges message {number}, and {self.number} were sent")
        while self.outgoing and self.outgoing[0][0] <= number:
            _, _, body = self.outgoing.popleft()
            self.kept -= len(body)
            self.cursor = max(0, self.cursor - 1)
        self.room.set()


def greeting_message(**content: Any) -> bytes:
    """The message that opens a stream."""
    return b"H" + bytes(8) + json.dumps({"protocol": PROTOCOL, **content}).encode()


def checked_greeting(message: Any, terms: dict[str, Any], own: str) -> dict[str, Any]:
    """The content of a greeting to the party called `own`; raises Fault for what is none, and Refusal for other terms,
    with what differs and both values: it is read at both ends."""
    if not isinstance(message, bytes) or message[:1] != b"H":
        raise Fault("it did not greet")
    if len(message) > LARGEST_GREETING:
        raise Fault(f"its greeting has {len(message):,} bytes, and may have {LARGEST_GREETING:,}")
    try:
        content = json.loads(message[HEADER:])
        fields = {name: content[name] for name in _FIELDS}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Fault("its greeting cannot be read") from error
    texts, optional = [fields[name] for name in _FIELDS[:3]], [fields["session"], fields["met"]]
    if (
        not all(isinstance(text, str) and len(text) <= 128 for text in texts)
        or not all(text is None or (isinstance(text, str) and len(text) <= 128) for text in optional)
        or not isinstance(fields["received"], int)
        or isinstance(fields["received"], bool)
        or fields["received"] < 0
        or not isinstance(fields["greeting"], dict)
    ):
        raise Fault("its greeting cannot be read")
    if content.get("protocol") != PROTOCOL:
        raise Refusal(f"It speaks version {content.get('protocol')!r} of the protocol, this party {PROTOCOL}.")
    try:
        found = difference(terms, content.get("terms"), (own, fields["name"]))
    except RecursionError as error:
        raise Fault("its terms cannot be read") from error
    if found:
        raise Refusal(
            f"The parties did not agree on the same terms: {found}. Take both from one proposal; for one accuracy, say "
            "the same --epsilon."
        )
    return fields


def parsed(message: Any) -> tuple[bytes, int, bytes]:
    """Kind, number and body of a message; raises Fault for anything else."""
    if not isinstance(message, bytes) or len(message) < HEADER:
        raise Fault("it sent less than a message")
    kind, number = message[:1], int.from_bytes(message[1:HEADER], "big")
    if kind not in (b"F", b"N", b"A"):
        raise Fault(f"it sent a message of no known kind, {kind!r}")
    if len(message) - HEADER > LARGEST_FRAME:
        raise Fault(f"it sent {len(message) - HEADER:,} bytes, and a frame may have {LARGEST_FRAME:,}")
    if kind == b"A" and len(message) != HEADER:
        raise Fault("it sent an acknowledgement with something in it")
    return kind, number, message[HEADER:]


def parsed_note(body: bytes) -> dict[str, Any]:
    """The content of a note; raises Fault for anything else."""
    try:
        content = json.loads(body) if len(body) <= LARGEST_NOTE else None
    except (ValueError, RecursionError) as error:
        raise Fault("it sent a note that cannot be read") from error
    if not isinstance(content, dict):
        raise Fault("it sent a note that cannot be read")
    return content


def difference(ours: dict[str, Any], theirs: Any, names: tuple[str, str]) -> str:
    """What the terms of two parties of these names disagree on, with both values; empty where they agree."""
    if ours == theirs:
        return ""
    own, other = _flat(ours), _flat(theirs)
    keys = [key for key in {**own, **other} if own.get(key) != other.get(key)]
    said = [
        f"{_short(key)[1:-1]} is {_short(other.get(key))} at {names[1]!r} and {_short(own.get(key))} at {names[0]!r}"
        for key in keys[:_MOST_DIFFERENCES]
    ]
    return "; ".join(said) + (f"; and {len(keys) - len(said)} more" if len(keys) > len(said) else "")


def _flat(terms: Any) -> dict[str, Any]:
    """Terms by where their values stand: of a mapping or a list in them each entry, so that no more is said than what
    differs."""
    flat: dict[str, Any] = {}
    for key, value in terms.items() if isinstance(terms, dict) else [("terms", terms)]:
        match value:
            case dict():
                flat |= {f"{key}.{name}": inner for name, inner in value.items()}
            case list():
                flat |= {f"{key}[{place}]": inner for place, inner in enumerate(value)}
            case _:
                flat[key] = value
    return flat


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
