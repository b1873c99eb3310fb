import numpy as np
import pytest
from nacl import bindings

from terrine.collaboration.circuits.garbling import fresh_offset
from terrine.collaboration.circuits.transfer import (
    WIDTH,
    BaseReceiver,
    BaseSender,
    ExtensionReceiver,
    ExtensionSender,
    Transcript,
    TransferError,
    bits_of_offset,
    column_bytes,
    transposed,
)

# Every point of small order of edwards25519 in its canonical encoding, then invalid encodings.
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",  # order 1
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # order 2
    "0000000000000000000000000000000000000000000000000000000000000000",  # order 4
    "0000000000000000000000000000000000000000000000000000000000000080",  # order 4
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",  # order 8
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",  # order 8
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",  # order 8
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",  # order 8
]
NOT_CANONICAL = [
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]
NOT_ON_CURVE = "0200000000000000000000000000000000000000000000000000000000000000"


def base(delta, student=b"session", guardian=b"session"):
    sender = BaseSender(student)
    receiver = BaseReceiver(guardian, bits_of_offset(delta), sender.point)
    return sender, receiver


@pytest.fixture(scope="module")
def delta():
    return fresh_offset()


@pytest.fixture(scope="module")
def transfers(delta):
    sender, receiver = base(delta)
    return sender, receiver, sender.keys(receiver.points)


def test_the_receiver_gets_the_keys_it_chose_and_no_others(delta, transfers):
    _, receiver, keys = transfers
    for number, choice in enumerate(bits_of_offset(delta).tolist()):
        assert np.array_equal(receiver.keys[number], keys[choice, number])
        assert not np.array_equal(receiver.keys[number], keys[1 - choice, number])
    assert len({key.tobytes() for half in keys for key in half}) == 2 * WIDTH


def test_keys_are_bound_to_their_context(delta):
    sender, receiver = base(delta, b"session", b"another")
    assert not (sender.keys(receiver.points) == receiver.keys).all(axis=2).any()


def test_every_transfer_is_fresh(delta, transfers):
    again, receiver = base(delta)
    assert again.point != transfers[0].point
    assert not (receiver.points == transfers[1].points).all(axis=1).any()


def mixed_order():
    """A point of the prime-order group plus one of order 8: on the curve, but not in the group."""
    eighth = bytes.fromhex(SMALL_ORDER[4])
    return bindings.crypto_core_ed25519_add(BaseSender(b"").point, eighth)


BAD = [*map(bytes.fromhex, [*SMALL_ORDER, *NOT_CANONICAL, NOT_ON_CURVE]), mixed_order()]


@pytest.mark.parametrize("point", BAD, ids=range(len(BAD)))
def test_points_outside_the_group_are_refused_by_both_sides(delta, transfers, point):
    sender, receiver, _ = transfers
    with pytest.raises(TransferError, match="group"):
        BaseReceiver(b"session", bits_of_offset(delta), point)
    answers = receiver.points.copy()
    answers[77] = np.frombuffer(point, np.uint8)
    with pytest.raises(TransferError, match="group"):
        sender.keys(answers)


@pytest.mark.parametrize("shapes", [[(1, 1)], [(3, 21), (3, 21), (3, 5)], [(110, 40)], [(2, 64)]])
def test_the_extension_gives_labels_of_the_bits(delta, transfers, shapes):
    sender, receiver, keys = transfers
    transcripts = [Transcript(Transcript.first(b"session", sender.point, receiver.points)) for _ in range(2)]
    student = ExtensionReceiver(keys, transcripts[0])
    guardian = ExtensionSender(delta, receiver.keys, transcripts[1])
    seen = set()
    for number, shape in enumerate(shapes):
        bits = np.random.default_rng(number).integers(0, 2, shape).astype(np.uint8)
        message, labels = student.extend(bits)
        assert message.columns.shape == (WIDTH, column_bytes(bits.size))
        zero = guardian.extend(message, guardian.challenge(message), *shape)
        for wire in range(shape[0]):
            for query in range(shape[1]):
                assert np.array_equal(labels[wire, query], zero[wire, query] ^ (delta * np.uint64(bits[wire, query])))
        seen |= {label.tobytes() for label in labels.reshape(-1, 2)}
    assert len(seen) == sum(wires * queries for wires, queries in shapes)


def test_rows_are_the_columns_bit_by_bit():
    for width in (8, 1024, 2056):
        columns = np.random.default_rng(width).integers(0, 256, (WIDTH, width)).astype(np.uint8)
        rows = transposed(columns)
        assert rows.shape == (8 * width, 2)
        for row in range(0, 8 * width, 97):
            value = sum((int(columns[column, row // 8]) >> row % 8 & 1) << column for column in range(WIDTH))
            assert int(rows[row, 0]) | int(rows[row, 1]) << 64 == value
