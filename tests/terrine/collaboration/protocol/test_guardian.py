import numpy as np
import pytest

from terrine.aggregation.gnmax import ConfidentGNMax
from terrine.aggregation.votes import histograms_of
from terrine.collaboration.protocol.guardian import Guardian
from terrine.collaboration.protocol.messages import Kind
from terrine.collaboration.protocol.party import ProtocolError
from terrine.collaboration.protocol.student import StudentParty
from terrine.errors import InputError, SettingError
from terrine.privacy.noise import ReplayNoise
from tests.collaboration_sessions import (
    GUARDIAN,
    HEADER,
    STUDENT,
    Loop,
    Noise,
    agreement,
    answered,
    asked_again,
    confident,
    parties_of,
    plaintext,
    random_votes,
    resealed,
    summing,
)

CASES = [
    agreement(),
    agreement(reveal="histogram"),
    confident(),
    confident(reveal="histogram"),
    summing(),
    summing(round=2),
    asked_again(reveal="histogram"),
    asked_again(threshold=3.0, sigma_threshold=1.0),
]
NAMES = ["argmax", "histogram", "confident argmax", "confident histogram", "sums", "a later round"]
NAMES += ["histogram after averages", "confident argmax after averages"]


def test_noise_is_drawn_once_for_each_kind_with_its_shape():
    agreed = confident()
    noise = Noise(agreed)
    answered(agreed, random_votes(agreed), noise)
    assert noise.calls == ["threshold", "counts"]
    assert noise.drawn["threshold"].shape == (40,)
    assert noise.drawn["counts"].shape == (40, 4)
    noise = Noise(agreement())
    answered(agreement(), random_votes(agreement()), noise)
    assert noise.calls == ["counts"]


@pytest.mark.parametrize(
    "draw",
    [
        None,
        lambda kind, shape: np.zeros(3),
        lambda kind, shape: np.full(shape, np.nan),
        lambda kind, shape: np.zeros(shape, "c8"),
    ],
)
def test_a_source_of_noise_that_is_none_stops_the_round(draw):
    agreed = agreement()
    loop = Loop(parties_of(agreed, random_votes(agreed), draw)).start()
    with pytest.raises(SettingError, match="oise"):
        loop.run()
    assert not any((sender, frame[6]) == (GUARDIAN, Kind.CHOICES) for sender, _, frame in loop.record)


def test_the_test_is_that_of_confident_gnmax_with_the_same_secure_lattice():
    agreed = confident(queries=400)
    votes = random_votes(agreed)
    counts = histograms_of(votes, agreed.classes)
    tests = ReplayNoise(3).gaussian(agreed.queries, agreed.sigma_threshold)
    numbers = np.rint(ReplayNoise(4).gaussian(counts.shape, agreed.sigma))
    guardian, student, _ = answered(agreed, votes, lambda kind, shape: tests if kind == "threshold" else numbers)

    class Same:
        """The noise that the guardian had, in the order in which the mechanism asks for it."""

        kind = "replay"

        def gaussian(self, shape, sigma):
            return tests if np.ndim(shape) == 0 else numbers[guardian.result]

    local = ConfidentGNMax(threshold=agreed.threshold, sigma1=agreed.sigma_threshold, sigma2=agreed.sigma)
    answers = local.answer(counts, epsilon=1e6, delta=1e-5, noise=Same())
    assert np.array_equal(guardian.result, answers.answered)
    assert np.array_equal(student.result, answers.labels)


def test_the_state_is_empty_until_the_noise_is_drawn_and_then_only_questions_are_added():
    agreed = confident()
    loop = Loop(parties_of(agreed, random_votes(agreed), noise := Noise(agreed))).start()
    guardian = loop.parties[GUARDIAN]
    kept, asked = None, 0
    while loop.waiting:
        # Before the answers to a frame go out, the state is what it will be.
        sender, (receiver, frame) = loop.waiting.popleft()
        answers = loop.parties[receiver].receive(sender, frame)
        state = guardian.state()
        assert bool(state) == bool(noise.calls)
        if kept is not None:
            assert all(np.array_equal(state[key], kept[key]) for key in kept if key != "questions")
            assert np.array_equal(state["questions"][: len(kept["questions"])], kept["questions"])
            asked += receiver == GUARDIAN and frame[6] in (Kind.BASE, Kind.BITS)
            assert len(state["questions"]) == asked
        kept = state or None
        loop.push(receiver, answers)
    assert {"counts", "tests", "present", "origin", "agreement", "secret", "questions"} == set(kept)
    assert asked == 3


def rerun(agreed, guardian_state, student_state, session="f" * 32):
    guardian = Guardian.resume(agreed, guardian_state, session=session)
    student = StudentParty.resume(agreed, student_state, session=session)
    Loop({GUARDIAN: guardian, STUDENT: student}).start().run()
    return guardian, student


@pytest.mark.parametrize("agreed", CASES, ids=NAMES)
def test_a_resumed_session_gives_the_same_answers_without_new_noise(agreed):
    votes, noise = random_votes(agreed), Noise(agreed)
    guardian, student, _ = answered(agreed, votes, noise)
    calls = list(noise.calls)
    states = guardian.state(), student.state()
    again_guardian, again_student = rerun(agreed, *states)
    assert noise.calls == calls
    assert np.array_equal(again_student.result, student.result)
    assert np.array_equal(again_student.passed, student.passed)
    assert again_guardian.finished
    # And again, from the states of the resumed session.
    third = rerun(agreed.resumed("f" * 32), again_guardian.state(), again_student.state(), session="e" * 32)
    assert np.array_equal(third[1].result, student.result)


@pytest.mark.parametrize("agreed", CASES, ids=NAMES)
def test_a_session_cut_off_anywhere_resumes_or_was_never_answered(agreed):
    votes, noise = random_votes(agreed), Noise(agreed)
    total = len(answered(agreed, votes, noise)[2].record)
    answers, _ = plaintext(agreed, votes, noise.drawn)
    resumed = 0
    loop = Loop(parties_of(agreed, votes, fresh := Noise(agreed))).start()
    for steps in range(total + 1):
        loop.run(min(steps, 1))
        states = [loop.parties[name].state() for name in (GUARDIAN, STUDENT)]
        if all(states):
            assert np.array_equal(rerun(agreed, *states)[1].result, answers)
            resumed += 1
        else:
            # One of them cannot go on, so nothing that depends on the noise has left the guardian.
            kinds = {frame[6] for sender, _, frame in loop.record if sender == GUARDIAN}
            assert kinds <= {Kind.PRESENT}
            assert fresh.calls in ([], list(noise.calls))
    # Shares, of votes with a proof, in a later round heads, and what the two that gather say first.
    each = (2 if agreed.reveal == "sums" else 4) + bool(agreed.round)
    assert resumed >= total - each * len(agreed.teachers) - 2


SPOKEN = (Kind.BASE, Kind.CHOICES, Kind.BITS, Kind.TABLES, Kind.OPENED)


def spoken(record):
    """What guardian and student said to each other about the queries, without headers."""
    return [(Kind(frame[6]), frame[HEADER:]) for _, _, frame in record if frame[6] in SPOKEN]


def test_a_resumed_session_says_the_same_again_in_frames_of_its_own():
    agreed = confident()
    guardian, student, loop = answered(agreed, random_votes(agreed), Noise(agreed))
    states = guardian.state(), student.state()
    again = Loop(
        {GUARDIAN: Guardian.resume(agreed, states[0], session="f" * 32),
         STUDENT: StudentParty.resume(agreed, states[1], session="f" * 32)}
    ).start().run()  # fmt: skip
    assert spoken(again.record) == spoken(loop.record)
    assert {kind for kind, _ in spoken(again.record)} == set(SPOKEN)
    assert not {frame for _, _, frame in again.record} & {frame for _, _, frame in loop.record}


def test_labels_and_keys_of_another_round_on_the_same_votes_are_fresh():
    agreed = agreement()
    rounds = [
        answered(agreed.resumed(digit * 32), random_votes(agreed), Noise(agreed)) for digit in "12"
    ]  # the agreement of another session, from its start

    def words(record):
        data = b"".join(frame[HEADER:] for _, _, frame in record if frame[6] in (Kind.CHOICES, Kind.BITS, Kind.TABLES))
        return {data[place : place + 16] for place in range(0, len(data) - 15, 16)}

    def seeds(record):
        return {frame[HEADER + 16 : HEADER + 32] for _, _, frame in record if frame[6] == Kind.TABLES}

    (guardian, _, loop), (other, _, again) = rounds
    assert len(seeds(loop.record) | seeds(again.record)) == 2
    assert min(len(set(seed)) for seed in seeds(loop.record) | seeds(again.record)) > 4
    assert not np.array_equal(guardian._delta, other._delta)
    shared = words(loop.record) & words(again.record)
    assert all(len(set(word)) < 14 for word in shared)  # headers of arrays and padding, no label


def test_a_state_of_another_round_ends_the_session_cleanly():
    agreed = agreement()
    first, second = (answered(agreed.resumed(digit * 32), random_votes(agreed), Noise(agreed)) for digit in "12")
    guardian, student = rerun(agreed, first[0].state(), second[1].state())
    assert student.result is None
    for party in (guardian, student):
        assert party.finished
        assert "different rounds" in party.aborted


def test_a_state_that_is_damaged_or_foreign_is_refused():
    agreed = confident()
    guardian, student, _ = answered(agreed, random_votes(agreed), Noise(agreed))
    state = guardian.state()
    damages = [
        {},
        {key: value for key, value in state.items() if key != "tests"},
        {key: value for key, value in state.items() if key != "questions"},
        state | {"questions": state["questions"][:, :-1]},
        state | {"secret": state["secret"][:-1]},
        state | {"counts": state["counts"][:-1]},
        state | {"counts": state["counts"].astype(np.int64)},
        state | {"present": state["present"][:-1]},
        state | {"agreement": state["agreement"][::-1]},
        student.state(),
    ]
    for damaged in damages:
        with pytest.raises(InputError, match="damaged"):
            Guardian.resume(agreed, damaged, session="f" * 32)
    with pytest.raises(InputError, match="another agreement"):
        Guardian.resume(confident(sigma=2.0), state, session="f" * 32)
    with pytest.raises(SettingError, match="new random id"):
        Guardian.resume(agreed, state, session=agreed.session)
    with pytest.raises(SettingError, match="new random id"):
        Guardian.resume(agreed.resumed("e" * 32), state, session=agreed.session)


def test_a_label_that_was_never_made_is_not_opened():
    agreed = confident(queries=20)
    loop = Loop(parties_of(agreed, random_votes(agreed), Noise(agreed))).start()
    while loop.waiting[0][1].frame[6] != Kind.OPENED:
        loop.step()
    _, (_, frame) = loop.waiting.popleft()
    wrong = bytearray(frame)
    wrong[HEADER + 16 + 16 * 7] ^= 4
    with pytest.raises(ProtocolError, match="never made") as caught:
        loop.parties[GUARDIAN].receive(STUDENT, resealed(bytes(wrong)))
    assert caught.value.sender == STUDENT
    assert loop.parties[GUARDIAN].result is None
    assert loop.parties[GUARDIAN].finished
    # The shares and the noise are what they were: another session may go on with them.
    states = [loop.parties[name].state() for name in (GUARDIAN, STUDENT)]
    assert rerun(agreed, *states)[1].result is not None


@pytest.mark.parametrize(("place", "queries"), [(HEADER + 16 + 3, 1), (HEADER + 32 + 16 + 6_400, 20)])
def test_altered_tables_are_found_by_the_student(place, queries):
    agreed = agreement(queries=200)
    loop = Loop(parties_of(agreed, random_votes(agreed), Noise(agreed))).start()
    while loop.waiting[0][1].frame[6] != Kind.TABLES:
        loop.step()
    _, (_, frame) = loop.waiting.popleft()
    wrong = bytearray(frame)
    for query in range(queries):  # a ciphertext is used for one of two colours
        wrong[place + 16 * query] ^= 1
    with pytest.raises(ProtocolError, match="altered") as caught:
        list(loop.parties[STUDENT].receive(GUARDIAN, resealed(bytes(wrong))))
    assert caught.value.sender == GUARDIAN
    assert loop.parties[STUDENT].result is None


def test_points_outside_the_group_are_refused_by_name():
    agreed = agreement()
    for kind, receiver, sender in ((Kind.BASE, GUARDIAN, STUDENT), (Kind.CHOICES, STUDENT, GUARDIAN)):
        loop = Loop(parties_of(agreed, random_votes(agreed), Noise(agreed))).start()
        while loop.waiting[0][1].frame[6] != kind:
            loop.step()
        _, (_, frame) = loop.waiting.popleft()
        wrong = frame[:160] + b"\1" + bytes(31) + frame[192:]
        with pytest.raises(ProtocolError, match="group") as caught:
            list(loop.parties[receiver].receive(sender, resealed(wrong)))
        assert caught.value.sender == sender
