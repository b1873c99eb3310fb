"""A student party that hides different bits in different columns of the transfer extension.

Transfer r of wire 0 is the student's bit for query r. It flips that bit only in column r + 1. If Δ has a 1 there, the
guardian's labels of the wire are the student's label with bit r + 1 flipped, and the query opens with that label only;
otherwise it opens with the label as it is. So 127 queries of one block show Δ. With Δ the student evaluates tables on
chosen inputs, and recovers exact differences of counts that the noise should hide.
"""

from unittest import mock

import numpy as np
import pytest

from terrine.collaboration.circuits.garbling import Engine, ciphers_of, labels_from_seed
from terrine.collaboration.circuits.transfer import WIDTH, Transcript, bits_of_offset
from terrine.collaboration.protocol import phase
from terrine.collaboration.protocol.agreement import ProtocolError, arrays_of, body_of
from terrine.collaboration.protocol.guardian_round import GuardianRound
from terrine.collaboration.protocol.randomness import Expansion
from terrine.collaboration.protocol.student_round import StudentRound
from tests.collaboration_sessions import (
    Loop,
    Noise,
    agreement,
    answered,
    confident,
    plaintext,
    random_votes,
    reports_of,
)
from tests.collaboration_transfers import Cheater, flips_of

ASKED = 150
THIEVES = {"argmax": agreement, "with a test": confident}
SPREAD = [(query + 1, query) for query in range(WIDTH - 1)]


class Thief(StudentRound):
    """Cheats in one block, with a guess of bits of Δ, and learns Δ from what opens."""

    places = SPREAD
    guess = np.zeros(WIDTH, np.uint8)
    block = 0
    learnt = None

    def _begun(self, plan, number):
        if number != self.block:
            return super()._begun(plan, number)
        circuit, block = plan.find(number)
        before = self._base[1] if number == 0 else self._facts.get(f"requested-{number - 1}")
        draw = Expansion(self._secret, f"sacrificed bits {number}")
        cheater = Cheater(self._base[0], Transcript(before), draw, plan.offset(number))
        cheater.guess, cheater.flips = self.guess, flips_of(circuit.inputs(self._shares, block).size, self.places)
        message, labels = cheater.extend(circuit.inputs(self._shares, block))
        self._facts.setdefault(f"requested-{number}", cheater._transcript.state)
        return labels.copy(), self._post(f"blocks/{number}", body_of(*message))

    def _opened(self, plan, number, own, answer):
        if number == self.block and self.places is SPREAD:
            self.learnt = self._steal(plan, own, answer)
        return super()._opened(plan, number, own, answer)

    def _steal(self, plan, own, answer):
        circuit, block = plan.find(self.block)
        size = circuit.size(block)
        seed, tables, hashes, _ = arrays_of(answer, circuit.tables_specs(block))
        engine = Engine(circuit.circuit, size, ciphers_of(circuit.circuit, circuit.context + bytes([circuit.number])))
        theirs = labels_from_seed(seed.tobytes(), circuit.circuit.inputs[0], size)
        outputs = engine.evaluate(block, tables, np.concatenate((theirs, own)))
        colours = (outputs[..., 0] & np.uint64(1)).astype(bool)
        genuine = engine._hash_outputs(block, outputs) == np.where(colours, hashes[:, 1], hashes[:, 0])
        delta = np.concatenate(([1], ~genuine.all(axis=0)[: WIDTH - 1])).astype(np.uint8)
        for column, query in SPREAD:  # with the labels as they are now known to be, the round goes on
            own[0, query, column // 64] ^= np.uint64(int(delta[column]) << column % 64)
        return np.packbits(delta, bitorder="little").view("<u8")


def loop_of(agreed, noise=None):
    loop = Loop(agreed, reports_of(agreed, random_votes(agreed)), noise or Noise(agreed))
    loop.close()
    return loop


def tables(loop):
    return [answer for path, _, answer in loop.record if path.startswith("blocks")]


def offset(loop):
    return GuardianRound(loop.agreed, loop.facts[0])._base[0]


@pytest.mark.parametrize("make", THIEVES.values(), ids=THIEVES)
def test_a_student_that_hides_different_bits_in_different_columns_gets_no_table(make):
    loop = loop_of(make(queries=ASKED))
    thief = loop.student(Thief)
    with pytest.raises(ProtocolError, match="Block 0 fails the consistency check"):
        thief.run()
    assert not tables(loop)
    assert thief.learnt is None


@pytest.mark.parametrize("make", THIEVES.values(), ids=THIEVES)
def test_without_the_check_the_same_student_learns_the_offset_of_all_labels(make):
    loop = loop_of(make(queries=ASKED))
    thief = loop.student(Thief)
    with mock.patch("terrine.collaboration.circuits.transfer.hmac.compare_digest", return_value=True):
        thief.run()
    assert np.array_equal(thief.learnt, offset(loop))


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
    loop = loop_of(agreed, noise := Noise(agreed))
    thief = loop.student(Thief)
    thief._base  # noqa: B018
    width = 8 * phase.Plan(agreed, bytes(16)).phases[0].width(1)
    thief.places, thief.block = [(column, place % width) for column, place in PLACES[case]], 1
    thief.guess = bits_of_offset(offset(loop)) ^ (not right)
    if right:  # then it knows its labels as well, and the round goes on as if nothing had been
        np.testing.assert_array_equal(thief.run()[1], plaintext(agreed, random_votes(agreed), noise.drawn)[0])
        return
    with pytest.raises(ProtocolError, match="Block 1 fails the consistency check"):
        thief.run()
    assert len(tables(loop)) == 1


def again(loop, student):
    other = Loop(loop.agreed, loop.reports, loop.noise, (dict(loop.facts[0]), {"secret": loop.facts[1]["secret"]}))
    other.names = loop.names
    return other, other.student(student)


@pytest.mark.parametrize("block", [0, 1])
def test_a_failed_check_is_final_whatever_is_asked_after_it(block, monkeypatch):
    """A student that could ask again would try one bit of the same Δ after the other."""
    monkeypatch.setattr(phase, "_BLOCK", 128)

    class Same(Thief):
        pass

    class Otherwise(Thief):
        guess = np.ones(WIDTH, np.uint8)

    class OneBit(Thief):
        """The same matrix with another check: otherwise every guess could be tried on one matrix."""

        guess = np.eye(1, WIDTH, 40, np.uint8)[0]

    for kind in (Same, Otherwise, OneBit):
        kind.block = block
    loop = loop_of(confident(queries=3 * 128))
    with pytest.raises(ProtocolError, match=f"Block {block} fails"):
        loop.student(Same).run()
    assert f"request-{block}" in loop.facts[0]
    told = tables(loop)
    assert len(told) == block
    for student, fault in (
        (Same, f"Block {block} fails the consistency check"),
        (Otherwise, "is not the one that was answered"),
        (OneBit, "is not the one that was answered"),
        (StudentRound, "is not the one that was answered"),
        (Same, f"Block {block} fails the consistency check"),
    ):
        other, party = again(loop, student)
        with pytest.raises(ProtocolError, match=fault):
            party.run()
        assert tables(other) == told
        assert other.facts[0] == loop.facts[0]


def test_another_offer_meets_another_offset_even_if_the_first_one_was_forgotten():
    agreed = confident(queries=8)
    loop = answered(agreed, random_votes(agreed), Noise(agreed))[2]
    offsets = []
    for secret in (loop.facts[1]["secret"], bytes(32)):
        other = Loop(agreed, loop.reports, loop.noise, ({"settled": loop.facts[0]["settled"]}, {"secret": secret}))
        other.names = loop.names
        other.student().run()
        offsets.append(offset(other))
    assert np.array_equal(offsets[0], offset(loop))
    assert not np.array_equal(offsets[1], offset(loop))
