"""Frames that nobody would send: each is refused by the sender's name, and the session goes on as if it never came."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from terrine.collaboration.protocol.messages import LARGEST_FRAME, Kind
from terrine.collaboration.protocol.party import ProtocolError
from tests.collaboration_sessions import (
    GUARDIAN,
    HEADER,
    STUDENT,
    Loop,
    Noise,
    agreement,
    answered,
    confident,
    parties_of,
    plaintext,
    random_votes,
    resealed,
)

FRAMES = 1_000


def malformed(frame, earlier, rng):
    """A frame that cannot be right where `frame` would be."""
    kind = int(rng.integers(9))
    damaged = bytearray(frame)
    if kind == 0:  # bits that fell over
        for place in rng.integers(0, len(frame), rng.integers(1, 20)):
            damaged[place] ^= int(rng.integers(1, 256))
        # Twice the same place may have restored it.
        return bytes(damaged) if bytes(damaged) != frame else frame[:-1]
    if kind == 1:  # cut off, or longer than it says
        return frame[: rng.integers(0, len(frame))] if rng.random() < 0.7 else frame + rng.bytes(rng.integers(1, 99))
    if kind == 2:  # a header that lies, with the checksum that fits
        place = int(rng.choice([*range(128), *range(132, HEADER)]))
        damaged[place] ^= int(rng.integers(1, 256))
        return resealed(damaged)
    if kind == 3:  # an array that lies about itself
        place = HEADER + int(rng.integers(16))
        if place >= len(damaged):
            return resealed(damaged + bytes(16))
        damaged[place] ^= int(rng.integers(1, 256))
        return resealed(damaged)
    if kind == 4:  # noise
        return rng.bytes(int(rng.integers(0, 4_000)))
    if kind == 5:  # noise behind a header that is right
        return resealed(frame[:HEADER] + rng.bytes(max(1, len(frame) - HEADER + int(rng.choice([-16, 16, 160])))))
    if kind == 6 and earlier:  # a replay
        return earlier[int(rng.integers(len(earlier)))]
    if kind == 7:  # of another kind
        damaged[6] = int(rng.choice([number for number in range(256) if number != frame[6]]))
        return resealed(damaged)
    # a number that is not the next one
    damaged[120] ^= int(rng.integers(1, 256))
    return resealed(damaged)


@pytest.mark.parametrize("agreed", [confident(), confident(reveal="histogram")], ids=["argmax", "histogram"])
def test_malformed_frames_are_refused_and_change_nothing(agreed):
    votes, noise = random_votes(agreed), Noise(agreed)
    deliveries = [receiver for _, receiver, _ in answered(agreed, votes, noise)[2].record]
    each = {name: FRAMES // deliveries.count(name) + 1 for name in (GUARDIAN, STUDENT)}
    rng = np.random.default_rng(0)
    refused = dict.fromkeys(each, 0)
    earlier = {}

    def attack(receiver, sender, frame):
        party = loop.parties[receiver]
        for _ in range(each[receiver]):
            wrong = malformed(frame, earlier.get((sender, receiver), []), rng)
            assert wrong != frame
            with pytest.raises(ProtocolError) as caught:
                list(party.receive(sender, wrong))
            assert caught.value.sender == sender
            refused[receiver] += 1
        earlier.setdefault((sender, receiver), []).append(frame)

    loop = Loop(parties_of(agreed, votes, noise := Noise(agreed)), before=attack)
    loop.start().run()
    answers, passed = plaintext(agreed, votes, noise.drawn)
    assert np.array_equal(loop.parties[STUDENT].result, answers)
    assert np.array_equal(loop.parties[GUARDIAN].result, passed)
    assert min(refused.values()) >= FRAMES


def test_a_teacher_refuses_everything():
    agreed = agreement()
    _, _, loop = answered(agreed, random_votes(agreed), Noise(agreed))
    frames = [frame for _, _, frame in loop.record]
    rng = np.random.default_rng(1)
    for number in range(FRAMES):
        sender = (GUARDIAN, STUDENT, "south", "stranger")[number % 4]
        frame = malformed(frames[number % len(frames)], frames, rng)
        with pytest.raises(ProtocolError, match=sender):
            loop.parties["north"].receive(sender, frame)


def test_contents_that_are_wrong_but_well_formed_cause_no_crash():
    # A party may send wrong numbers: they spoil the answers or are found, and do no more.
    agreed = confident(queries=8)
    votes = random_votes(agreed)
    total = len(answered(agreed, votes, Noise(agreed))[2].record)
    rng = np.random.default_rng(2)
    ended = {"answered": 0, "refused": 0}
    for number in range(total):
        loop = Loop(parties_of(agreed, votes, Noise(agreed))).start().run(number % total)
        sender, (receiver, frame) = loop.waiting.popleft()
        damaged = bytearray(frame)
        for place in rng.integers(HEADER, len(frame), 30) if len(frame) > HEADER else []:
            damaged[place] ^= int(rng.integers(1, 256))
        try:
            loop.push(receiver, loop.parties[receiver].receive(sender, resealed(damaged)))
            loop.run()
            ended["answered"] += 1
        except ProtocolError:
            ended["refused"] += 1
        student = loop.parties[STUDENT]
        if student.result is not None:
            assert student.result.shape == (8,)
            assert student.result.min() >= -1
    assert min(ended.values()) > 0


def test_frames_that_claim_much_take_no_memory():
    agreed = confident()
    votes = random_votes(agreed)
    loop = Loop(parties_of(agreed, votes, Noise(agreed))).start()
    rng = np.random.default_rng(3)
    large = rng.bytes(LARGEST_FRAME + 1)
    while loop.waiting[0][1].frame[6] != Kind.TABLES:
        loop.step()
    _, (_, frame) = loop.waiting[0]
    claims = []
    for first, last in pairwise(range(HEADER, HEADER + 17, 4)):
        damaged = bytearray(frame)
        damaged[first:last] = b"\xff" * 4
        claims.append(resealed(damaged))
    padded = resealed(
        frame[:124]
        + (LARGEST_FRAME - HEADER).to_bytes(4, "little")
        + frame[128:HEADER]
        + large[: LARGEST_FRAME - HEADER]
    )
    tracemalloc.start()
    try:
        for _ in range(20):
            for wrong in (*claims, padded, large):
                for name, sender in ((STUDENT, GUARDIAN), (GUARDIAN, STUDENT), (GUARDIAN, "north")):
                    with pytest.raises(ProtocolError):
                        list(loop.parties[name].receive(sender, wrong))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    loop.run()
    assert loop.parties[STUDENT].result is not None
