"""Frames: a header that binds a message to its session, its two parties and its place, and arrays of declared shape.

    header (144 bytes): magic, version, kind, digest of the agreement, session, sender, receiver, sequence number,
                        length of the payload, CRC-32 of everything else
    payload:            arrays one after another; each a type, its dimensions and its values, all at multiples of 16

Who reads a frame knows from its own state which kinds may come next and which shapes they have, so nothing is
allocated for what a frame claims, and nothing in it is code. The checksum finds accidents. Whoever changes frames on
purpose is kept out by the transport, which authenticates the peer; the header makes sure that an authentic frame
cannot be used anywhere but in its own place.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from terrine.collaboration.protocol.party import Agreement, ProtocolError, Send

LARGEST_FRAME = 16 * 2**20
_MAGIC, _VERSION, _ALIGN = b"TRNF", 6, 16
_HEADER = struct.Struct("<4sHH32s16s32s32sIII12x")
_ARRAY = struct.Struct("<BB2xIII")
_TYPES = {0: np.dtype("u1"), 1: np.dtype("<u2"), 2: np.dtype("<u4"), 3: np.dtype("<u8")}
_CODES = {kind: code for code, kind in _TYPES.items()}

Spec = tuple[DTypeLike, tuple[int, ...]]
Arrays = list[NDArray[Any]]


class Kind(IntEnum):
    """What a message is. Numbers are never used again for another meaning."""

    SHARES = 1  # teacher → guardian, student: a block of queries' shares
    PRESENT = 2  # guardian ↔ student: whose shares are complete, and what is opened of their proofs
    RESUMED = 3  # guardian ↔ student: the round whose sums they hold
    COUNTS = 4  # guardian → student: noised shares of counts, where histograms are revealed
    BASE = 5  # student → guardian: the point that starts the base transfers
    CHOICES = 6  # guardian → student: a point for each of the 128 base transfers
    BITS = 7  # student → guardian: its input bits of a block, hidden by the transfer extension, and the check of it
    TABLES = 8  # guardian → student: a block garbled
    OPENED = 9  # student → guardian: labels of the outputs that both may learn
    DONE = 10  # student → guardian: it has its answers
    PROOF = 11  # teacher → guardian, student: that its shares are of votes, the last of its frames
    HEAD = 12  # student → teacher: what earlier rounds released led to, at which this one's sums are asked


def array_bytes(spec: Spec) -> int:
    """How many bytes of a payload an array of this type and shape takes, three dimensions at most."""
    size = prod(spec[1]) * np.dtype(spec[0]).itemsize
    return _ARRAY.size + size + -size % _ALIGN


def _name(party: str) -> bytes:
    return hashlib.sha256(b"terrine party\0" + party.encode()).digest()


class Channel:
    """The frames between this party and one other, numbered in each direction from 0."""

    def __init__(self, agreement: Agreement, party: str, peer: str) -> None:
        self.peer = peer
        self.sent = 0
        self.received = 0
        self._fixed = (agreement.digest, bytes.fromhex(agreement.session))
        self._outward = (_name(party), _name(peer))
        self._inward = (_name(peer), _name(party))

    def send(self, kind: Kind, *arrays: NDArray[Any]) -> Send:
        """The next frame to the peer."""
        frame = self.frame(self.sent, kind, arrays)
        self.sent += 1
        return Send(self.peer, frame)

    def frame(self, sequence: int, kind: Kind, arrays: Sequence[NDArray[Any]]) -> bytes:
        """The frame with this number; equal arguments give equal bytes."""
        parts = [b""]
        for array in arrays:
            parts += _described(array)
        length = sum(len(part) for part in parts)
        if _HEADER.size + length > LARGEST_FRAME:
            raise ValueError(f"A frame of {length:,} bytes was made: blocks are to be planned smaller.")
        fields = (_MAGIC, _VERSION, kind, *self._fixed, *self._outward, sequence, length)
        parts[0] = _HEADER.pack(*fields, _checksum(_HEADER.pack(*fields, 0), parts[1:]))
        return b"".join(parts)

    def receive(
        self, frame: bytes, expected: Mapping[Kind, Sequence[Spec]], restart: bool = False
    ) -> tuple[Kind, Arrays]:
        """Check the peer's next frame and give its arrays, read-only views of it.

        Args:
            expected: The kinds that may come now, each with the types and shapes of its arrays.
            restart: Accept frame number 0 again. The caller makes sure that it is no replay.

        Raises:
            ProtocolError: it is anything else. The channel is as it was before.
        """
        kind, sequence, payload = self._checked(frame)
        if sequence != self.received and not (restart and sequence == 0):
            what = "was received before" if sequence < self.received else "comes too early"
            raise self.refusal(f"message {sequence} {what}; message {self.received} is next.")
        if kind not in expected:
            allowed = ", ".join(possible.name for possible in expected) or "nothing"
            raise self.refusal(f"it is out of phase: {Kind(kind).name} came where {allowed} is expected.")
        arrays = list(self._arrays(payload, expected[Kind(kind)]))
        self.received = sequence + 1
        return Kind(kind), arrays

    def number_of(self, frame: bytes) -> int:
        """The number that a frame claims to have; -1 for what has no header."""
        if not isinstance(frame, bytes) or len(frame) < _HEADER.size:
            return -1
        return int(_HEADER.unpack_from(frame)[7])

    def refusal(self, fault: str) -> ProtocolError:
        """The error that names the peer."""
        return ProtocolError(self.peer, fault)

    def _checked(self, frame: bytes) -> tuple[int, int, memoryview]:
        if not isinstance(frame, bytes):
            raise self.refusal(f"it is no bytes but {type(frame).__name__}.")
        if len(frame) > LARGEST_FRAME:
            raise self.refusal(f"it has {len(frame):,} bytes, more than the {LARGEST_FRAME:,} of a frame.")
        if len(frame) < _HEADER.size:
            raise self.refusal(f"it has {len(frame)} bytes, fewer than a header: it was cut off.")
        magic, version, kind, digest, session, sender, receiver, sequence, length, checksum = _HEADER.unpack_from(frame)
        if (magic, version) != (_MAGIC, _VERSION):
            raise self.refusal(f"it is no frame of version {_VERSION} of this protocol.")
        if length != len(frame) - _HEADER.size:
            raise self.refusal(f"it announces {length:,} bytes and has {len(frame) - _HEADER.size:,}: it was cut off.")
        payload = memoryview(frame)[_HEADER.size :]
        zeroed = _HEADER.pack(magic, version, kind, digest, session, sender, receiver, sequence, length, 0)
        if checksum != _checksum(zeroed, [payload]) or frame[_HEADER.size - 12 : _HEADER.size] != bytes(12):
            raise self.refusal("its checksum does not fit: it was damaged on the way.")
        if session != self._fixed[1]:
            raise self.refusal("it belongs to another session.")
        if digest != self._fixed[0]:
            raise self.refusal("its sender agreed on something else: compare the agreements.")
        if (sender, receiver) != self._inward:
            raise self.refusal("it names another sender or receiver.")
        if kind not in set(Kind):
            raise self.refusal(f"its kind {kind} is unknown.")
        return kind, sequence, payload

    def _arrays(self, payload: memoryview, specs: Sequence[Spec]) -> Iterator[NDArray[Any]]:
        if len(payload) != sum(array_bytes(spec) for spec in specs):
            raise self.refusal(f"its {len(payload):,} bytes are not the ones that are expected here.")
        offset = 0
        for dtype, shape in specs:
            head = _preamble(np.dtype(dtype), shape)
            if payload[offset : offset + len(head)] != head:
                raise self.refusal(f"an array in it is not {np.dtype(dtype)} {list(shape)}, as is expected here.")
            start = offset + len(head)
            offset += array_bytes((dtype, shape))
            size = prod(shape) * np.dtype(dtype).itemsize
            if any(payload[start + size : offset]):
                raise self.refusal("the space between its arrays is not empty.")
            yield np.frombuffer(payload, dtype, prod(shape), start).reshape(shape)


def _preamble(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    return _ARRAY.pack(_CODES[dtype.newbyteorder("<")], len(shape), *shape, *[0] * (3 - len(shape)))


def _described(array: NDArray[Any]) -> list[Any]:
    kind = array.dtype.newbyteorder("<")
    data = np.ascontiguousarray(array, kind)
    padding = bytes(-data.nbytes % _ALIGN)
    return [_preamble(kind, array.shape), data.reshape(-1).view("u1").data, padding]


def _checksum(header: bytes, parts: Sequence[Any]) -> int:
    checksum = zlib.crc32(header)
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
