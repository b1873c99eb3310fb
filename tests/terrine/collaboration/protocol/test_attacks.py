"""Parties that violate the protocol: the round opens only what was charged."""

import numpy as np
import pytest

from terrine.aggregation.votes import count_votes
from terrine.collaboration.protocol import phase
from terrine.collaboration.protocol.agreement import ProtocolError
from terrine.collaboration.protocol.guardian_round import GuardianRound
from terrine.collaboration.protocol.shares import modulo, sharing_of, signed, threshold_bits
from tests.collaboration_sessions import Loop, Noise, answered, confident, random_votes, reports_of
from tests.terrine.collaboration.protocol.test_report import poisoned

CLASSES = 4


def noise_of(thresholds):
    return lambda kind, shape: thresholds if kind == "threshold" else np.zeros(shape)


def round_of(agreed, honest, noise):
    """A round in which the party `west` votes for class 0."""
    return Loop(agreed, reports_of(agreed, np.column_stack([honest, np.zeros(len(honest), int)])), noise)


def opened(agreed, honest, counts=None, shift=0, thresholds=None):
    """Open a round in which `west` adds counts with an accepted proof and the student party adds a shift."""
    loop = round_of(agreed, honest, noise_of(thresholds))
    if counts is not None:
        loop.reports["west"] = poisoned(agreed, "west", counts)
    loop.shift = shift
    loop.close(check=False)
    passed = loop.student().run()[0]
    assert np.array_equal(GuardianRound(agreed, loop.facts[0]).passed, passed)
    return passed


def neighbours(queries):
    """Two sets of votes of the honest that differ in one teacher's votes: class 0 in one, class 1 in the other."""
    votes = np.full((queries, 4), 1)
    other = votes.copy()
    other[:, 2] = 0
    return votes, other


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
        moved = count_votes(honest, CLASSES) + np.array(counts)
        expected = [max(row) + eta >= AGREED.threshold for row, eta in zip(moved.tolist(), NOISE.tolist(), strict=True)]
        assert opened(AGREED, honest, counts, thresholds=NOISE).tolist() == expected


@pytest.mark.parametrize(
    "shift",
    [(3, -9, -9, -9), (0, MODULUS // 2 - 2, 0, 0), (0, 2**33, -(2**33), 0), (-(2**36), -(2**36) + 2, 0, -(2**36))],
)
def test_what_a_test_opens_is_the_mechanism_on_the_counts_that_the_student_party_moved(shift):
    for honest in neighbours(AGREED.queries):
        counts = count_votes(np.column_stack([honest, np.zeros(len(honest), int)]), CLASSES) + np.array(shift)
        expected = [
            max(row) + eta >= AGREED.threshold for row, eta in zip(counts.tolist(), NOISE.tolist(), strict=True)
        ]
        assert opened(AGREED, honest, shift=np.array(shift), thresholds=NOISE).tolist() == expected


def test_the_largest_input_of_a_student_party_passes_always_and_the_least_never():
    highest, votes = 2 ** threshold_bits(AGREED) - 1, neighbours(AGREED.queries)[0]
    for entered, passes in ((highest, True), (0, False)):
        loop = round_of(AGREED, votes, noise_of(NOISE))
        loop.close()
        student = loop.student()
        student._shares = np.full_like(student._shares, entered)
        assert (student.run()[0] == passes).all()


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


def again(loop, shift=0, secret=None):
    """The same round, asked again by a student party with other sums, or another secret, than before."""
    facts = (dict(loop.facts[0]), {"secret": secret or loop.facts[1]["secret"]})
    other = Loop(loop.agreed, loop.reports, loop.noise, facts, shift=shift)
    other.names = loop.names
    return other


@pytest.mark.parametrize("other_secret", [False, True])
def test_a_question_that_differs_gets_no_answer_and_is_not_kept(other_secret):
    agreed = confident(queries=12)
    passed, result, loop = answered(agreed, random_votes(agreed), Noise(agreed))
    cheating = again(loop, 0 if other_secret else 1, bytes(range(32)) if other_secret else None)
    with pytest.raises(ProtocolError, match="is not the one that was answered before"):
        cheating.student().run()
    assert not any(path.startswith("blocks") for path, _, _ in cheating.record)
    assert cheating.facts[0] == loop.facts[0]
    # With its own sums the student party finishes, and is told what it was told.
    honest = again(loop)
    for found, expected in zip(honest.student().run(), (passed, result), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_every_block_is_answered_in_one_way_however_often_a_round_is_asked(monkeypatch):
    monkeypatch.setattr(phase, "_BLOCK", 4)
    agreed = confident(queries=12)
    loop = answered(agreed, random_votes(agreed), Noise(agreed))[2]
    said = {path: answer for path, _, answer in loop.record}
    blocks = [path for path in said if path.startswith("blocks")]
    for queried in range(len(blocks)):
        # It repeats what it asked, and asks something else where nothing was answered yet.
        facts = {name: value for name, value in loop.facts[0].items()
                 if name in ("settled", "base") or int(name.rpartition("-")[2]) < queried}  # fmt: skip
        shift = np.zeros((agreed.queries, agreed.classes), int)
        shift[4 * min(queried, 3) :] = 2
        cheating = Loop(agreed, loop.reports, loop.noise, (facts, {"secret": loop.facts[1]["secret"]}), shift=shift)
        cheating.names = loop.names
        cheating.student().run()
        told = [(path, answer) for path, _, answer in cheating.record if path in blocks[:queried]]
        assert told == [(path, said[path]) for path in blocks[:queried]]
        if not shift.any():
            continue
        # That was its one request about those: it is not told what its true sums would have given.
        honest = again(cheating)
        with pytest.raises(ProtocolError, match="is not the one that was answered before"):
            honest.student().run()
