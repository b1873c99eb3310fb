import numpy as np
import pytest

from terrine.aggregation.votes import histograms_of
from terrine.collaboration.protocol import gathering
from terrine.collaboration.protocol.messages import Channel, Kind
from terrine.collaboration.protocol.party import ProtocolError
from terrine.collaboration.protocol.shares import sharing_of
from terrine.collaboration.protocol.student import StudentParty
from terrine.collaboration.protocol.teacher import Teacher
from terrine.errors import InputError, SettingError
from tests.collaboration_sessions import GUARDIAN, STUDENT, agreement, confident, random_votes, summing


def shares_of(teacher, agreed):
    """What each receiver reads, put together."""
    blocks = gathering.share_blocks(agreed, "north")
    channels = {name: Channel(agreed, name, "north") for name in (GUARDIAN, STUDENT)}
    received = {name: [] for name in channels}
    kind = sharing_of(agreed).kind
    for send in teacher.start():
        channel = channels[send.to]
        if channel.received == len(blocks):
            assert send.frame[6] == Kind.PROOF
            continue
        rows = blocks[channel.received]
        shape = (rows.stop - rows.start, agreed.classes)
        specs = {Kind.SHARES: [("u1", (16,)), (kind, shape), ("<u8", (*shape, 1))]}
        received[send.to].append(channel.receive(send.frame, specs)[1][1])
    return {name: np.concatenate(parts) for name, parts in received.items()}


@pytest.mark.parametrize("agreed", [agreement(), confident()], ids=["argmax", "with a test"])
@pytest.mark.parametrize("block", [2**20, 64])
def test_the_two_shares_sum_to_the_partys_own_histogram_and_the_masks_range(monkeypatch, block, agreed):
    monkeypatch.setattr(gathering, "_BLOCK", block)
    votes = random_votes(agreed)[:, :2]
    teacher = Teacher(agreed, "north", votes)
    shares = shares_of(teacher, agreed)
    total = shares[GUARDIAN].astype(int) + shares[STUDENT].astype(int) - 2 ** sharing_of(agreed).bits
    assert np.array_equal(total, histograms_of(votes, agreed.classes))
    assert teacher.finished
    assert teacher.state() == {}


def test_frames_go_to_the_guardian_and_the_student_in_turns(monkeypatch):
    monkeypatch.setattr(gathering, "_BLOCK", 64)
    agreed = agreement()
    receivers = [send.to for send in Teacher(agreed, "north", random_votes(agreed)[:, :2]).start()]
    assert receivers == [GUARDIAN, STUDENT] * (len(receivers) // 2)
    assert len(receivers) > 4


def test_frames_can_be_sent_again(monkeypatch):
    monkeypatch.setattr(gathering, "_BLOCK", 64)
    agreed = agreement()
    teacher = Teacher(agreed, "north", random_votes(agreed)[:, :2])
    first = [send.frame for send in teacher.start() if send.to == STUDENT]
    assert [send.frame for send in teacher.frames(STUDENT)] == first


def test_another_sharing_of_the_same_votes_is_fresh():
    agreed = agreement()
    votes = random_votes(agreed)[:, :2]
    one, other = (shares_of(Teacher(agreed, "north", votes), agreed) for _ in range(2))
    assert not np.array_equal(one[GUARDIAN], other[GUARDIAN])
    assert not np.array_equal(one[STUDENT], other[STUDENT])


def test_votes_that_do_not_fit_the_agreement_are_refused():
    agreed = agreement()
    votes = random_votes(agreed)
    for wrong in (votes, votes[:-1, :2], votes[:, :1], votes[:, 0]):
        with pytest.raises(InputError, match="shape"):
            Teacher(agreed, "north", wrong)
    with pytest.raises(InputError, match="classes"):
        Teacher(agreed, "north", votes[:, :2] + agreed.classes)
    with pytest.raises(SettingError, match="knows no teacher"):
        Teacher(agreed, "east", votes[:, :2])


def test_a_teacher_is_told_nothing():
    agreed = agreement()
    teacher = Teacher(agreed, "north", random_votes(agreed)[:, :2])
    with pytest.raises(ProtocolError, match="expects no messages"):
        teacher.receive(GUARDIAN, Channel(agreed, GUARDIAN, "north").send(Kind.DONE).frame)


def heads_for(agreed, head):
    return [send.frame for send in StudentParty(agreed, head).heads() if send.to == "north"]


@pytest.mark.parametrize("block", [2**20, 64])
def test_sums_are_asked_at_a_head_to_the_bit_and_the_same_shares_follow_to_both(monkeypatch, block):
    monkeypatch.setattr(gathering, "_BLOCK", block)
    agreed, asked = summing(round=3), []
    head = np.random.default_rng(1).normal(size=agreed.head) * 10.0 ** np.arange(-20, agreed.head - 20)
    teacher = Teacher(agreed, "north", lambda found: asked.append(found.copy()) or np.full((agreed.queries, 1), -7))
    assert not list(teacher.start())
    sent = [list(teacher.receive(STUDENT, frame)) for frame in heads_for(agreed, head)]
    assert not any(sent[:-1])
    assert asked[0].tobytes() == head.tobytes()
    own = {to: b"".join(send.frame for send in sent[-1] if send.to == to) for to in (GUARDIAN, STUDENT)}
    assert own == {to: b"".join(send.frame for send in teacher.frames(to)) for to in own}
    assert teacher.finished
    with pytest.raises(ProtocolError, match="expects no messages"):
        teacher.receive(STUDENT, heads_for(agreed, head)[0])
    assert len(asked) == 1


def test_a_head_of_another_round_from_another_party_or_with_a_number_that_is_none_is_refused():
    agreed, head = summing(round=3), np.zeros(48)
    teacher = Teacher(agreed, "north", lambda found: pytest.fail("nothing may be asked"))
    (frame,) = heads_for(agreed, head)
    for sender, wrong, fault in (
        (GUARDIAN, frame, "expects no messages"),
        (STUDENT, heads_for(summing(round=2), head)[0], "agreed on something else"),
        (STUDENT, heads_for(agreed, head + np.nan)[0], "none"),
    ):
        with pytest.raises(ProtocolError, match=fault):
            teacher.receive(sender, wrong)
