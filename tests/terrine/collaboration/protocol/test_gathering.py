import numpy as np
import pytest

from terrine.collaboration.protocol import gathering
from terrine.collaboration.protocol.field import PRIME
from terrine.collaboration.protocol.guardian import Guardian
from terrine.collaboration.protocol.messages import Channel, Kind
from terrine.collaboration.protocol.party import ProtocolError
from terrine.collaboration.protocol.shares import sharing_of
from terrine.collaboration.protocol.student import StudentParty
from terrine.collaboration.protocol.teacher import Teacher
from tests.collaboration_sessions import (
    GUARDIAN,
    STUDENT,
    Loop,
    Noise,
    agreement,
    confident,
    parties_of,
    plaintext,
    random_votes,
    teachers_of,
)


def without(agreed, votes, *names):
    """The votes of those who are there."""
    owner = np.repeat([name for name, _ in agreed.teachers], [held for _, held in agreed.teachers])
    return votes[:, ~np.isin(owner, names)]


def close(loop, absent=()):
    for name in (GUARDIAN, STUDENT):
        loop.push(name, loop.parties[name].close(absent))
    return loop.run()


def session(agreed, votes, drop=lambda sender, receiver, number: False, noise=None):
    """A session that has gathered all but the frames that `drop` names."""
    loop = Loop(parties_of(agreed, votes, noise or Noise(agreed)))
    loop.start()
    counts = {}
    kept = []
    for sender, send in loop.waiting:
        number = counts[sender, send.to] = counts.get((sender, send.to), -1) + 1
        if not drop(sender, send.to, number):
            kept.append((sender, send))
    loop.waiting.clear()
    loop.waiting.extend(kept)
    return loop.run()


def test_a_teacher_that_does_not_answer_is_left_out():
    agreed = agreement()
    votes, noise = random_votes(agreed), Noise(agreed)
    loop = session(agreed, votes, lambda sender, receiver, number: sender == "west", noise)
    assert not loop.parties[STUDENT].closed
    close(loop)
    assert loop.parties[STUDENT].present == loop.parties[GUARDIAN].present == ["north", "south"]
    answers, _ = plaintext(agreed, without(agreed, votes, "west"), noise.drawn)
    assert np.array_equal(loop.parties[STUDENT].result, answers)


@pytest.mark.parametrize("receiver", [GUARDIAN, STUDENT])
def test_a_teacher_whose_shares_one_side_lacks_in_part_is_left_out_by_both(monkeypatch, receiver):
    monkeypatch.setattr(gathering, "_BLOCK", 128)
    agreed = agreement()
    votes, noise = random_votes(agreed), Noise(agreed)
    loop = session(agreed, votes, lambda *frame: frame[:2] == ("west", receiver) and frame[2] > 0, noise=noise)
    close(loop)
    assert loop.parties[STUDENT].present == loop.parties[GUARDIAN].present == ["north", "south"]
    answers, _ = plaintext(agreed, without(agreed, votes, "west"), noise.drawn)
    assert np.array_equal(loop.parties[STUDENT].result, answers)


def test_a_party_that_the_host_gave_up_is_left_out_though_its_shares_are_there():
    agreed = agreement()
    votes, noise = random_votes(agreed), Noise(agreed)
    loop = session(agreed, votes, lambda *frame: frame[:2] == ("west", STUDENT), noise=noise)
    loop.push(GUARDIAN, loop.parties[GUARDIAN].close())
    loop.push(STUDENT, loop.parties[STUDENT].close(["south"]))
    loop.run()
    assert loop.parties[STUDENT].finished
    assert loop.parties[GUARDIAN].aborted
    assert "2 teachers" in loop.parties[STUDENT].aborted


def test_with_too_few_teachers_the_round_is_aborted_and_no_noise_is_drawn():
    agreed = agreement(minimum=4)
    noise = Noise(agreed)
    loop = session(agreed, random_votes(agreed), lambda sender, receiver, number: sender == "north", noise)
    close(loop)
    for name in (GUARDIAN, STUDENT):
        party = loop.parties[name]
        assert party.finished
        assert "3 teachers are there, and 4 are needed" in party.aborted
        assert party.present is None
        assert party.result is None
        assert party.state() == {}
    assert noise.calls == []
    with pytest.raises(ProtocolError, match="over"):
        loop.parties[GUARDIAN].receive(STUDENT, b"")


def test_a_round_that_is_complete_closes_by_itself_and_closing_again_does_nothing():
    agreed = agreement()
    loop = session(agreed, random_votes(agreed))
    assert loop.parties[STUDENT].result is not None
    assert list(loop.parties[STUDENT].close()) == list(loop.parties[GUARDIAN].close()) == []


def test_shares_after_the_round_was_closed_are_refused():
    agreed = agreement()
    votes = random_votes(agreed)
    loop = session(agreed, votes, lambda sender, receiver, number: sender == "west")
    close(loop)
    guardian = Guardian(agreed, Noise(agreed))
    list(guardian.close())
    for send in teachers_of(agreed, votes)["west"].frames(GUARDIAN):
        with pytest.raises(ProtocolError, match="closed") as caught:
            guardian.receive("west", send.frame)
        assert caught.value.sender == "west"


def test_a_broken_connection_goes_on_where_it_broke(monkeypatch):
    monkeypatch.setattr(gathering, "_BLOCK", 32)
    agreed = agreement()
    teacher = teachers_of(agreed, random_votes(agreed))["north"]
    student = StudentParty(agreed)
    frames = [send.frame for send in teacher.frames(STUDENT)]
    for frame in frames[:3]:
        list(student.receive("north", frame))
    with pytest.raises(ProtocolError, match="received before; message 3 is next"):
        student.receive("north", frames[1])
    for frame in frames[3:]:
        assert student.complete == []
        list(student.receive("north", frame))
    assert student.complete == ["north"]
    with pytest.raises(ProtocolError, match="here already"):
        student.receive("north", frames[-1])


def test_a_teacher_that_restarts_shares_anew_and_is_counted_once(monkeypatch):
    monkeypatch.setattr(gathering, "_BLOCK", 64)
    agreed = agreement()
    votes, noise = random_votes(agreed), Noise(agreed)
    parties = parties_of(agreed, votes, noise)
    killed = Teacher(agreed, "north", votes[:, :2])
    for name, last in ((GUARDIAN, 4), (STUDENT, 2)):
        for send in list(killed.frames(name))[:last]:
            list(parties[name].receive("north", send.frame))
    loop = Loop(parties).start().run()
    assert np.array_equal(loop.parties[STUDENT].result, plaintext(agreed, votes, noise.drawn)[0])


def test_two_sharings_of_one_party_are_never_added(monkeypatch):
    monkeypatch.setattr(gathering, "_BLOCK", 64)
    agreed = agreement()
    votes, noise = random_votes(agreed), Noise(agreed)
    parties = parties_of(agreed, votes, noise)
    other = Teacher(agreed, "west", votes[:, 4:])
    mixed = [*parties["west"].frames(GUARDIAN), *other.frames(STUDENT)]
    loop = Loop({name: party for name, party in parties.items() if name != "west"}).start()
    loop.waiting.extend(("west", send) for send in mixed)
    loop.run()
    # Both had all shares of all parties; but not of the same sharing.
    assert loop.parties[STUDENT].present == ["north", "south"]
    answers, _ = plaintext(agreed, without(agreed, votes, "west"), noise.drawn)
    assert np.array_equal(loop.parties[STUDENT].result, answers)
    # Within one side, a frame of another sharing is refused.
    student = StudentParty(agreed)
    frames, others = ([send.frame for send in teacher.frames(STUDENT)] for teacher in (parties["west"], other))
    list(student.receive("west", frames[0]))
    with pytest.raises(ProtocolError, match="another sharing"):
        student.receive("west", others[1])
    list(student.receive("west", others[0]))
    with pytest.raises(ProtocolError, match="received before"):
        student.receive("west", frames[0])
    list(student.receive("west", others[1]))


@pytest.mark.parametrize("agreed", [agreement(), confident()], ids=["argmax", "with a test"])
def test_a_share_that_is_larger_than_shares_are_is_refused(agreed):
    largest, kind = sharing_of(agreed).largest, sharing_of(agreed).kind
    assert largest < 2 ** (8 * kind.itemsize) - 1
    channel = Channel(agreed, "north", STUDENT)
    shares = np.zeros((agreed.queries, agreed.classes), kind)
    digits = np.zeros((*shares.shape, 1), "<u8")
    arrays = [np.zeros(16, np.uint8), shares, digits]
    student = StudentParty(agreed)
    shares[7, 1], digits[3] = largest + 1, PRIME - 1
    with pytest.raises(ProtocolError, match="bits"):
        student.receive("north", channel.frame(0, Kind.SHARES, arrays))
    shares[7, 1], digits[3] = largest, PRIME
    with pytest.raises(ProtocolError, match="field"):
        student.receive("north", channel.frame(0, Kind.SHARES, arrays))
    digits[3] = PRIME - 1
    list(student.receive("north", channel.frame(0, Kind.SHARES, arrays)))


def test_a_stranger_is_refused_by_name():
    agreed = agreement()
    for party in (Guardian(agreed, Noise(agreed)), StudentParty(agreed)):
        with pytest.raises(ProtocolError, match="no party of this session") as caught:
            party.receive("east", b"")
        assert caught.value.sender == "east"
        with pytest.raises(ProtocolError):
            party.receive(party.name, b"")


def test_a_teacher_may_not_speak_for_another():
    agreed = agreement()
    teachers = teachers_of(agreed, random_votes(agreed))
    student = StudentParty(agreed)
    frame = next(teachers["north"].frames(STUDENT)).frame
    with pytest.raises(ProtocolError, match="another sender"):
        student.receive("south", frame)
    with pytest.raises(ProtocolError):
        student.receive(GUARDIAN, frame)
