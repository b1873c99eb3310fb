"""A student party that hides different bits in different columns of the transfer extension.

Transfer r of wire 0 is the student's bit for query r. It flips that bit only in column r + 1. If Δ has a 1 there, the
guardian's labels of the wire are the student's label with bit r + 1 flipped, and the query opens with that label only;
otherwise it opens with the label as it is. So 127 queries of one block show Δ. With Δ the student evaluates tables on
inputs of its own choice, and finds exact differences of counts under noise that hides them.
"""

from unittest import mock

import numpy as np
import pytest

from terrine.collaboration.circuits.garbling import Engine, labels_from_seed
from terrine.collaboration.circuits.transfer import WIDTH, bits_of_offset
from terrine.collaboration.protocol import phase
from terrine.collaboration.protocol.expansion import Expansion
from terrine.collaboration.protocol.guardian import Guardian
from terrine.collaboration.protocol.messages import Kind
from terrine.collaboration.protocol.party import ProtocolError
from terrine.collaboration.protocol.student import StudentParty
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
)
from tests.collaboration_transfers import Cheater, flips_of

ASKED = 150
THIEVES = {"argmax": agreement, "with a test": confident}
SPREAD = [(query + 1, query) for query in range(WIDTH - 1)]


class Thief(StudentParty):
    """Cheats in one block of its first phase, with a guess of bits of Δ, and learns Δ from what opens."""

    places = SPREAD
    guess = np.zeros(WIDTH, np.uint8)
    block = 0
    learnt = None

    def _begin(self, phase):
        extension = self._extension
        if not isinstance(extension, Cheater):
            keys, honest = self._base.keys(self._points), extension._transcript
            self._extension = Cheater(keys, honest, Expansion(self._secret, "sacrificed bits"))
            self._extension.guess, self._blocks = self.guess, 0
        return super()._begin(phase)

    def _answer(self, frame):
        if self._step == "base":
            self._points = np.frombuffer(frame[-WIDTH * 32 :], np.uint8).reshape(WIDTH, 32)
        return super()._answer(frame)

    def _ask(self, blocks):
        for send in self._one_by_one(blocks):
            self._blocks += 1
            yield send

    def _one_by_one(self, blocks):
        for _ in range(min(blocks, len(self._phase.blocks) - self._asked)):
            size = self._phase.size(self._asked) * self._phase.circuit.inputs[1]
            self._extension.flips = flips_of(size, self.places) if self._blocks == self.block else None
            yield from super()._ask(1)

    def _evaluate(self, seed, tables, hashes, values):
        if self.learnt is None and self.places is SPREAD:
            self.learnt = self._steal(seed, tables, hashes, values)
        yield from super()._evaluate(seed, tables, hashes, values)

    def _steal(self, seed, tables, hashes, values):
        phase, size = self._phase, self._phase.size(0)
        engine, tables = Engine(phase.circuit, size, phase.ciphers), tables.reshape(len(tables), 2, size, 2)
        theirs, own = labels_from_seed(seed.tobytes(), phase.circuit.inputs[0], size), self._waiting[0]
        outputs = engine.evaluate(0, tables, np.concatenate((theirs, own)))
        opens = self._genuine(engine, outputs, hashes)
        delta = np.concatenate(([1], ~opens[: WIDTH - 1])).astype(np.uint8)
        words = np.packbits(delta, bitorder="little").view("<u8")
        for column, query in SPREAD:  # with the labels as they are now known to be, the session goes on
            own[0, query, column // 64] ^= np.uint64(int(delta[column]) << column % 64)
        return words

    def _genuine(self, engine, outputs, hashes):
        colours = (outputs[..., 0] & np.uint64(1)).astype(bool)
        return (engine._hash_outputs(0, outputs) == np.where(colours, hashes[:, 1], hashes[:, 0])).all(axis=0)


def session_with(thief, agreed, noise=None):
    parties = parties_of(agreed, random_votes(agreed), noise or Noise(agreed))
    parties[STUDENT] = thief
    return Loop(parties).start()


def opened(loop):
    """Return the payloads of the garbled tables that left the guardian."""
    sent = [(sender, frame) for sender, _, frame in loop.record] + [
        (sender, send.frame) for sender, send in loop.waiting
    ]
    return [frame[HEADER:] for sender, frame in sent if (sender, frame[6]) == (GUARDIAN, Kind.TABLES)]


@pytest.mark.parametrize("make", THIEVES.values(), ids=THIEVES)
def test_a_student_that_hides_different_bits_in_different_columns_gets_no_table(make):
    thief = Thief(make(queries=ASKED))
    loop = session_with(thief, thief.agreement)
    with pytest.raises(ProtocolError, match="block 0 fails the consistency check") as refused:
        loop.run()
    assert refused.value.sender == STUDENT
    guardian = loop.parties[GUARDIAN]
    assert guardian.finished
    assert "consistency check" in guardian.aborted
    assert not opened(loop)
    assert thief.learnt is None
    with pytest.raises(ProtocolError, match="over"):
        guardian.receive(STUDENT, loop.record[-1][2])


@pytest.mark.parametrize("make", THIEVES.values(), ids=THIEVES)
def test_without_the_check_the_same_student_learns_the_offset_of_all_labels(make):
    thief = Thief(make(queries=ASKED))
    loop = session_with(thief, thief.agreement)
    with mock.patch("terrine.collaboration.circuits.transfer.hmac.compare_digest", return_value=True):
        loop.run()
    assert thief.result is not None
    assert loop.parties[GUARDIAN].aborted is None
    assert np.array_equal(thief.learnt, loop.parties[GUARDIAN]._delta)


PLACES = {
    "one column": [(17, transfer) for transfer in range(32)],
    "one transfer of one column": [(17, 3)],
    "one wire": [(column, column % 8) for column in range(1, WIDTH)],
    "all columns but few": [(column, 3) for column in range(1, WIDTH) if column not in (20, 90)],
    "sacrificed transfers": [(17, -1), (90, -128)],
}


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("case", PLACES)
def test_it_gets_tables_only_if_it_guesses_the_bits_of_the_offset(case, right, monkeypatch):
    monkeypatch.setattr(phase, "_BLOCK", 8)
    agreed = confident(queries=24)
    thief, noise = Thief(agreed), Noise(agreed)
    loop = session_with(thief, agreed, noise)
    while not hasattr(loop.parties[GUARDIAN], "_delta"):
        loop.step()
    bits = phase.threshold_phase(agreed).circuit.inputs[1] * 8
    width = len(flips_of(bits, [])[0]) * 8
    thief.places, thief.block = [(column, place % width) for column, place in PLACES[case]], 1
    thief.guess = bits_of_offset(loop.parties[GUARDIAN]._delta) ^ (not right)
    if right:  # then it knows its labels as well, and the session goes on as if nothing had been
        loop.run()
        assert np.array_equal(thief.result, plaintext(agreed, random_votes(agreed), noise.drawn)[0])
        return
    with pytest.raises(ProtocolError, match="block 1 fails the consistency check"):
        loop.run()
    assert len(opened(loop)) == 1


def resumed(agreed, states, student, session):
    guardian_state, student_state = states
    return Loop(
        {
            GUARDIAN: Guardian.resume(agreed, guardian_state, session=session),
            STUDENT: student.resume(agreed, student_state, session=session),
        }
    ).start()


def broken(agreed, block):
    """The states of a session that a cheated block has ended, the guardian's as it is before the check is made."""
    thief = Thief(agreed)
    thief.block = block
    loop = session_with(thief, agreed)
    asked, guardian = 0, loop.parties[GUARDIAN]
    while (asked := asked + (loop.waiting[0][1].frame[6] == Kind.BITS)) <= block:
        loop.step()
    sender, (_, frame) = loop.waiting.popleft()
    answers = guardian.receive(sender, frame)
    states = guardian.state(), thief.state()
    assert len(states[0]["questions"]) == 2 + block
    with pytest.raises(ProtocolError, match=f"block {block} fails"):
        list(answers)
    assert np.array_equal(guardian.state()["questions"], states[0]["questions"])
    return states, opened(loop)


@pytest.mark.parametrize("block", [0, 1])
def test_a_failed_check_is_final_whatever_is_asked_after_it(block, monkeypatch):
    """A student that could ask again would try one bit of the same Δ after the other."""
    monkeypatch.setattr(phase, "_BLOCK", 128)
    agreed = confident(queries=3 * 128)
    states, told = broken(agreed, block)

    class Again(Thief):
        pass

    class Otherwise(Thief):
        pass

    Again.block = Otherwise.block = block
    Otherwise.guess = np.ones(WIDTH, np.uint8)
    for number, (student, fault) in enumerate(
        [
            (Again, f"block {block} fails the consistency check"),
            (Otherwise, "is not the one that was answered"),
            (StudentParty, "is not the one that was answered"),
            (Again, f"block {block} fails the consistency check"),
        ],
        1,
    ):
        loop = resumed(agreed, states, student, f"{number:032x}")
        with pytest.raises(ProtocolError, match=fault):
            loop.run()
        assert opened(loop) == told
        assert len(told) == block
        states = loop.parties[GUARDIAN].state(), states[1]


def test_another_check_for_the_same_matrix_is_another_question():
    """Otherwise a student could try every guess on one matrix."""
    agreed = confident(queries=ASKED)
    states, _ = broken(agreed, 0)
    frames = []

    class Guessing(Thief):
        guess = np.eye(1, WIDTH, 40, np.uint8)[0]

    loop = resumed(agreed, states, Guessing, "e" * 32)
    loop.before = lambda receiver, sender, frame: frames.append(frame)
    with pytest.raises(ProtocolError, match="question 1 is not the one that was answered"):
        loop.run()
    other = resumed(agreed, states, Thief, "d" * 32)
    with pytest.raises(ProtocolError, match="block 0 fails"):
        other.run()
    matrices = [
        [frame[HEADER : -16 - WIDTH * 16 - 32] for frame in sent if frame[6] == Kind.BITS]
        for sent in (frames, [frame for _, _, frame in other.record])
    ]
    assert matrices[0][0] == matrices[1][0]


def test_an_honest_student_resumes_with_the_same_bytes_and_other_sessions_with_others():
    agreed = confident(queries=ASKED)

    def bits(loop):
        return [frame[HEADER:] for _, _, frame in loop.record if frame[6] == Kind.BITS]

    guardian, student, loop = answered(agreed, random_votes(agreed), Noise(agreed))
    again = resumed(agreed, (guardian.state(), student.state()), StudentParty, "f" * 32).run()
    assert bits(again) == bits(loop)
    assert opened(again) == opened(loop)
    assert np.array_equal(again.parties[STUDENT].result, student.result)
    _, _, fresh = answered(agreed, random_votes(agreed), Noise(agreed))
    assert not set(bits(fresh)) & set(bits(loop))


def test_another_offer_meets_another_offset_even_if_the_first_one_was_forgotten():
    agreed = confident(queries=8)
    guardian, student, _ = answered(agreed, random_votes(agreed), Noise(agreed))
    forgetful = guardian.state() | {"questions": np.empty((0, 32), np.uint8)}
    offsets = []
    for secret in (student.state()["secret"], student.state()["secret"] ^ np.uint8(1)):
        states = forgetful, student.state() | {"secret": secret}
        offsets.append(resumed(agreed, states, StudentParty, "f" * 32).run().parties[GUARDIAN]._delta)
    assert np.array_equal(offsets[0], guardian._delta)
    assert not np.array_equal(offsets[1], guardian._delta)
