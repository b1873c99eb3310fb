"""Parties that do not keep to the protocol: what is opened is what was paid for, whatever they send."""

from unittest import mock

import numpy as np
import pytest

from terrine.aggregation.votes import histograms_of
from terrine.collaboration.protocol import gathering, phase
from terrine.collaboration.protocol.guardian import Guardian
from terrine.collaboration.protocol.messages import Kind
from terrine.collaboration.protocol.party import ProtocolError
from terrine.collaboration.protocol.shares import modulo, sharing_of, signed, threshold_bits
from terrine.collaboration.protocol.student import StudentParty
from terrine.collaboration.protocol.teacher import Teacher
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

CLASSES = 4


class Poisoner(Teacher):
    """A teacher party whose shares sum to counts of its own choice, of either sign, instead of votes."""

    def __init__(self, agreement, name, counts):
        super().__init__(agreement, name, np.zeros((agreement.queries, agreement.held_by(name)), int))
        sharing, counts = sharing_of(agreement), np.array(counts)
        totals = np.broadcast_to(counts, (agreement.queries, agreement.classes)).astype(object) + 2**sharing.bits
        first = np.minimum(totals, sharing.largest)
        shares = first.astype("<u8"), (totals - first).astype("<u8")
        self._share(np.broadcast_to(counts, totals.shape), shares)


class Shifter(StudentParty):
    """A student party that enters its sums with something added."""

    shift = 0

    def _take_sums(self, sums, parties):
        super()._take_sums(sums, parties)
        self._shares = (self._shares.astype(np.int64) + self.shift).astype(sums.dtype)


def noise_of(thresholds):
    return lambda kind, shape: thresholds if kind == "threshold" else np.zeros(shape)


def opened(agreed, honest, counts=None, shift=0, thresholds=None):
    """What a session opens where the party `west` adds counts, and the student party a shift."""
    parties = parties_of(agreed, np.column_stack([honest, np.zeros(len(honest), int)]), noise_of(thresholds))
    if counts is not None:
        parties["west"] = Poisoner(agreed, "west", counts)
    parties[STUDENT] = Shifter(agreed)
    parties[STUDENT].shift = shift
    with mock.patch.object(gathering, "accepted", return_value=True):  # as if its proof had been found good
        loop = Loop(parties).start().run()
    assert np.array_equal(loop.parties[GUARDIAN].result, loop.parties[STUDENT].passed)
    return loop.parties[STUDENT].passed


def neighbours(queries):
    """Two sets of votes of the honest that differ in one teacher's votes: class 0 in one, class 1 in the other."""
    votes = np.full((queries, 4), 1)
    other = votes.copy()
    other[:, 2] = 0
    return votes, other


@pytest.mark.parametrize(
    "counts",
    [
        (31, 0, 0, -30),
        (30, 0, 0, 0),
        (10**6, 0, 0, 0),
        (2, -1, 0, 0),
        (1, 1, 0, 0),
        (0, 0, 0, 0),
        (-(2**40), 2**40 + 1, 0, 0),
    ],
)
@pytest.mark.parametrize("agreed", [agreement(), confident()], ids=["argmax", "with a test"])
def test_shares_of_what_is_no_vote_are_left_out_and_their_sender_is_named(agreed, counts):
    votes, noise = random_votes(agreed), Noise(agreed)
    parties = parties_of(agreed, votes, noise)
    parties["west"] = Poisoner(agreed, "west", counts)
    loop = Loop(parties).start().run()
    for name in (GUARDIAN, STUDENT):
        assert loop.parties[name].refused == ["west"]
        assert loop.parties[name].present == ["north", "south"]
    assert np.array_equal(loop.parties[STUDENT].result, plaintext(agreed, votes[:, :4], noise.drawn)[0])


def test_where_what_is_left_is_too_little_the_sentence_names_who_shared_no_votes():
    agreed = agreement(minimum=5)
    parties = parties_of(agreed, random_votes(agreed), Noise(agreed))
    parties["west"] = Poisoner(agreed, "west", (30, 0, 0, 0))
    loop = Loop(parties).start().run()
    for name in (GUARDIAN, STUDENT):
        assert "What west shared are no votes of its teachers" in loop.parties[name].aborted


# Noise of every size on a grid, so that what is opened can be compared query by query: σ = 6 covers all of it.
NOISE = np.round(np.arange(-20, 20, 0.25) * 2**40) / 2**40
AGREED = confident(queries=len(NOISE), sigma_threshold=6.0)
LARGEST = 2 ** sharing_of(AGREED).bits
MODULUS = 2 ** (AGREED.total.bit_length() + 1)  # of shares that just hold a count less its threshold


@pytest.mark.parametrize(
    "counts",
    [
        (AGREED.total, 0, 0, 0),
        (AGREED.total - 1, 0, 0, 0),
        (7, -30, -30, -30),
        (0, MODULUS // 2 - 2, 0, 0),
        (-LARGEST, 5, -LARGEST, 0),
        (LARGEST, -LARGEST, LARGEST // 2, 1),
        (-LARGEST // 2, -LARGEST // 2 + 2, -LARGEST, -LARGEST),
        (-LARGEST, -LARGEST, -LARGEST, -LARGEST),
    ],
)
def test_what_a_test_opens_is_the_mechanism_on_the_counts_that_a_teacher_party_moved(counts):
    # Post-processing of max_j (n_j + c_j) + η, which one vote moves by 1 at most, for every c and every η.
    for honest in neighbours(AGREED.queries):
        moved = histograms_of(honest, CLASSES) + np.array(counts)
        expected = [max(row) + eta >= AGREED.threshold for row, eta in zip(moved.tolist(), NOISE.tolist(), strict=True)]
        assert opened(AGREED, honest, counts, thresholds=NOISE).tolist() == expected


@pytest.mark.parametrize(
    "shift",
    [(3, -9, -9, -9), (0, MODULUS // 2 - 2, 0, 0), (0, 2**33, -(2**33), 0), (-(2**36), -(2**36) + 2, 0, -(2**36))],
)
def test_what_a_test_opens_is_the_mechanism_on_the_counts_that_the_student_party_moved(shift):
    for honest in neighbours(AGREED.queries):
        counts = histograms_of(np.column_stack([honest, np.zeros(len(honest), int)]), CLASSES) + np.array(shift)
        expected = [
            max(row) + eta >= AGREED.threshold for row, eta in zip(counts.tolist(), NOISE.tolist(), strict=True)
        ]
        assert opened(AGREED, honest, shift=np.array(shift), thresholds=NOISE).tolist() == expected


def test_the_largest_input_of_a_student_party_passes_always_and_the_least_never():
    highest, votes = 2 ** threshold_bits(AGREED) - 1, neighbours(AGREED.queries)[0]

    class Entering(StudentParty):
        def _take_sums(self, sums, parties):
            super()._take_sums(sums, parties)
            self._shares = np.full_like(sums, self.entered)

    for Entering.entered, passes in ((highest, True), (0, False)):
        parties = parties_of(AGREED, np.column_stack([votes, votes[:, :1]]), noise_of(NOISE))
        parties[STUDENT] = Entering(AGREED)
        loop = Loop(parties).start().run()
        assert (loop.parties[STUDENT].passed == passes).all()


def test_failures_under_a_poisoned_count_are_as_frequent_as_the_noise_makes_them():
    # With thresholds clipped to N + 1 these fail for one of the neighbours and never for the other.
    counts = (AGREED.total, 0, 0, 0)
    failed = [~opened(AGREED, honest, counts, thresholds=NOISE) for honest in neighbours(AGREED.queries)]
    assert [int(fails.sum()) for fails in failed] == [
        int((NOISE + AGREED.total + more < AGREED.threshold).sum()) for more in (0, 1)
    ]
    assert 0 < failed[1].sum() < failed[0].sum()


def test_on_a_circle_two_classes_under_one_noise_would_tell_neighbours_apart():
    """Why shares are whole numbers where a threshold is tested: nothing here is the project's own arithmetic."""
    for bits in (4, 10, 30):
        shift = np.array([0, 2 ** (bits - 1) - 1])
        thresholds = np.arange(-5, 6)
        fails = [
            ~(signed(modulo(counts + shift - thresholds[:, None], bits), bits) >= 0).any(axis=1)
            for counts in (np.array([2, 2]), np.array([1, 3]))
        ]
        assert [int(often.sum()) for often in fails] == [0, 1]


def resumed(agreed, states, session, shift=0, secret=None):
    """Guardian and student of a resumed session in which the student has other sums than it wrote down."""
    guardian_state, student_state = states
    shares = student_state["shares"]
    student_state = student_state | {"shares": (shares.astype(np.int64) + shift).astype(shares.dtype)}
    if secret is not None:
        student_state = student_state | {"secret": secret}
    return {
        GUARDIAN: Guardian.resume(agreed, guardian_state, session=session),
        STUDENT: StudentParty.resume(agreed, student_state, session=session),
    }


def exact_counts(agreed, states):
    """What is known of every class once each was tested on the same noise until it just passes: counts less t."""
    found = np.empty((agreed.queries, agreed.classes), int)
    session = 0
    for label in range(agreed.classes):
        low, high = np.full(agreed.queries, -64), np.full(agreed.queries, 64)
        while (high - low > 1).any():
            middle = (low + high) // 2
            shift = np.full(found.shape, -200)
            shift[:, label] = middle
            session += 1
            parties = resumed(agreed, states, f"{session:032x}", shift)
            loop = Loop(parties).start()
            while loop.waiting and parties[GUARDIAN].result is None:
                loop.step()
            passes = parties[GUARDIAN].result
            low, high = np.where(passes, low, middle), np.where(passes, middle, high)
        found[:, label] = -high
    return found


def test_a_student_party_that_resumes_with_other_shares_is_told_nothing():
    agreed = confident(queries=12)
    guardian, student, _ = answered(agreed, random_votes(agreed), Noise(agreed))
    with pytest.raises(ProtocolError, match="question 1 is not the one that was answered") as refused:
        exact_counts(agreed, (guardian.state(), student.state()))
    assert refused.value.sender == STUDENT


@pytest.mark.parametrize("other_secret", [False, True])
def test_a_question_that_differs_gets_no_answer_and_ends_the_session(other_secret):
    agreed = confident(queries=12)
    guardian, student, _ = answered(agreed, random_votes(agreed), Noise(agreed))
    states = guardian.state(), student.state()
    secret = np.arange(32, dtype=np.uint8) if other_secret else None
    parties = resumed(agreed, states, "f" * 32, shift=0 if other_secret else 1, secret=secret)
    loop = Loop(parties).start()
    with pytest.raises(ProtocolError, match=f"question {0 if other_secret else 1} is not"):
        loop.run()
    assert not any(frame[6] == Kind.TABLES for _, _, frame in loop.record)
    assert "asks something else" in parties[GUARDIAN].aborted
    assert parties[GUARDIAN].finished
    # It was not kept either: with its own state the student party finishes, and is told what it was told.
    assert np.array_equal(parties[GUARDIAN].questions, states[0]["questions"])
    again = Loop(resumed(agreed, states, "e" * 32)).start().run()
    assert np.array_equal(again.parties[STUDENT].result, student.result)


def test_every_block_is_answered_in_one_way_however_often_a_session_breaks(monkeypatch):
    monkeypatch.setattr(phase, "_BLOCK", 4)
    agreed = confident(queries=12)
    votes = random_votes(agreed)
    total = len(answered(agreed, votes, Noise(agreed))[2].record)
    cheated = 0

    def tables(loop):
        return [frame[HEADER:] for _, _, frame in loop.record if frame[6] == Kind.TABLES]

    loop = Loop(parties_of(agreed, votes, Noise(agreed))).start()
    for steps in range(total):
        loop.run(min(steps, 1))
        states = [loop.parties[name].state() for name in (GUARDIAN, STUDENT)]
        if not all(states):
            continue
        # A student party that repeats what it asked, and asks something else where nothing was answered yet.
        shift = np.zeros((agreed.queries, agreed.classes), int)
        shift[4 * max(len(states[0]["questions"]) - 1, 0) :] = 2
        cheating = Loop(resumed(agreed, states, "f" * 32, shift)).start().run()
        assert tables(cheating)[: len(tables(loop))] == tables(loop)
        assert cheating.parties[STUDENT].result is not None
        # That was its one question about those: it is not told what its true sums would have given.
        again = Loop(resumed(agreed, (cheating.parties[GUARDIAN].state(), states[1]), "e" * 32)).start()
        if shift.any():
            cheated += 1
            with pytest.raises(ProtocolError, match="is not the one that was answered"):
                again.run()
        else:
            again.run()
            assert np.array_equal(again.parties[STUDENT].result, cheating.parties[STUDENT].result)
        assert tables(again) == tables(cheating)[: len(tables(again))]
    assert 3 < cheated < total
