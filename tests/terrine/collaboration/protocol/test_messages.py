import numpy as np
import pytest

from terrine.collaboration.protocol.messages import LARGEST_FRAME, Channel, Kind, array_bytes
from terrine.collaboration.protocol.party import ProtocolError
from tests.collaboration_sessions import CHECKSUM, HEADER, agreement, resealed

ARRAYS = [np.arange(5, dtype=np.uint8), np.arange(6, dtype="<u2").reshape(2, 3), np.zeros((1, 2, 3), "<u8")]
SPECS = {Kind.TABLES: [(array.dtype, array.shape) for array in ARRAYS]}


def channels(**changes):
    agreed = agreement(**changes)
    return Channel(agreed, "north", agreed.guardian), Channel(agreed, agreed.guardian, "north")


def test_arrays_arrive_as_they_were_sent():
    sender, receiver = channels()
    for number in range(3):
        send = sender.send(Kind.TABLES, *ARRAYS)
        assert send.to == agreement().guardian
        kind, arrays = receiver.receive(send.frame, SPECS)
        assert kind == Kind.TABLES
        for array, expected in zip(arrays, ARRAYS, strict=True):
            assert array.dtype == expected.dtype
            assert np.array_equal(array, expected)
            assert not array.flags.writeable
        assert receiver.received == sender.sent == number + 1


def test_arrays_lie_where_words_do():
    assert [array_bytes((array.dtype, array.shape)) for array in ARRAYS] == [32, 32, 64]
    sender, _ = channels()
    assert len(sender.send(Kind.TABLES, *ARRAYS).frame) == HEADER + 128
    assert len(sender.send(Kind.DONE).frame) == HEADER


def test_equal_frames_are_equal_bytes():
    sender, _ = channels()
    assert sender.frame(3, Kind.TABLES, ARRAYS) == sender.frame(3, Kind.TABLES, ARRAYS)
    assert sender.frame(3, Kind.TABLES, ARRAYS) != sender.frame(4, Kind.TABLES, ARRAYS)


def refused(receiver, frame, words, specs=SPECS):
    before = receiver.received
    with pytest.raises(ProtocolError, match=words or None) as caught:
        receiver.receive(frame, specs)
    assert caught.value.sender == "north"
    assert "'north'" in str(caught.value)
    assert receiver.received == before


def test_a_replay_and_a_gap_are_refused():
    sender, receiver = channels()
    first, second, third = (sender.send(Kind.TABLES, *ARRAYS).frame for _ in range(3))
    refused(receiver, second, "too early")
    receiver.receive(first, SPECS)
    refused(receiver, first, "received before")
    refused(receiver, third, "too early")
    receiver.receive(second, SPECS)


def test_a_frame_is_for_one_session_one_agreement_and_one_pair():
    sender, receiver = channels()
    frame = sender.send(Kind.TABLES, *ARRAYS).frame
    refused(channels(session="f" * 32)[1], frame, "another session")
    refused(channels(queries=41)[1], frame, "agreed on something else")
    agreed = agreement()
    refused(receiver, Channel(agreed, "south", agreed.guardian).send(Kind.TABLES, *ARRAYS).frame, "another sender")
    refused(receiver, Channel(agreed, "north", agreed.student).send(Kind.TABLES, *ARRAYS).frame, "another sender")
    refused(receiver, Channel(agreed, agreed.guardian, "north").send(Kind.TABLES, *ARRAYS).frame, "another sender")


def test_a_frame_out_of_phase_is_refused():
    sender, receiver = channels()
    frame = sender.send(Kind.TABLES, *ARRAYS).frame
    refused(receiver, frame, "TABLES came where DONE, BITS is expected", {Kind.DONE: [], Kind.BITS: []})
    refused(receiver, frame, "where nothing is expected", {})


@pytest.mark.parametrize("size", [0, 1, 3, HEADER - 1, HEADER, HEADER + 16, HEADER + 127])
def test_a_frame_that_was_cut_off_is_refused(size):
    sender, receiver = channels()
    frame = sender.send(Kind.TABLES, *ARRAYS).frame[:size]
    refused(receiver, frame, "cut off")


def test_a_frame_too_large_is_refused_unread():
    _, receiver = channels()
    refused(receiver, bytes(LARGEST_FRAME + 1), "more than")
    refused(receiver, bytearray(10), "no bytes")


def test_every_flipped_bit_is_found():
    sender, receiver = channels()
    frame = sender.send(Kind.TABLES, *ARRAYS).frame
    for place in range(0, 8 * len(frame), 3):
        damaged = bytearray(frame)
        damaged[place // 8] ^= 1 << place % 8
        refused(receiver, bytes(damaged), "")
    receiver.receive(frame, SPECS)


def test_headers_and_shapes_that_lie_with_a_fitting_checksum_are_refused():
    sender, receiver = channels()
    frame = sender.send(Kind.TABLES, *ARRAYS).frame
    assert resealed(frame) == frame
    places = [*range(CHECKSUM.start), *range(CHECKSUM.stop, HEADER + 16)]
    for place in places:
        for flip in (1, 0x80, 0xFF):
            damaged = bytearray(frame)
            damaged[place] ^= flip
            refused(receiver, resealed(damaged), "")
    # The space between the first array's 5 bytes and the next array.
    for place in range(HEADER + 16 + 5, HEADER + 32):
        damaged = bytearray(frame)
        damaged[place] ^= 1
        refused(receiver, resealed(damaged), "not empty")


def test_arrays_of_another_type_or_shape_are_refused_before_they_are_made():
    sender, receiver = channels()
    first = ARRAYS[0]
    for other in (first.astype("<u2"), first[:4], first.reshape(1, 5), np.zeros(5000, np.uint8)):
        refused(receiver, sender.frame(0, Kind.TABLES, [other, *ARRAYS[1:]]), "expected here")
    refused(receiver, sender.frame(0, Kind.TABLES, ARRAYS[:2]), "expected here")
    refused(receiver, sender.frame(0, Kind.TABLES, [*ARRAYS, first]), "expected here")
    claim = bytearray(sender.frame(0, Kind.TABLES, ARRAYS))
    claim[HEADER + 4 : HEADER + 8] = b"\xff" * 4  # four thousand million elements
    refused(receiver, resealed(claim), "expected here")


def test_a_block_that_fits_no_frame_is_a_defect():
    sender, _ = channels()
    with pytest.raises(ValueError, match="smaller"):
        sender.send(Kind.TABLES, np.zeros(LARGEST_FRAME, np.uint8))
