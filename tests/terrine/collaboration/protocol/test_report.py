import numpy as np
import pytest

from terrine.aggregation.votes import count_votes
from terrine.collaboration.protocol.agreement import ProtocolError, arrays_of
from terrine.collaboration.protocol.proof import accepted
from terrine.collaboration.protocol.report import (
    check_report,
    make_report,
    report_size,
    report_specs,
    shared_report,
    sum_reports,
)
from terrine.collaboration.protocol.shares import sharing_of
from terrine.errors import InputError, SettingError
from tests.collaboration_sessions import agreement, confident, random_votes, reports_of, summing

AGREED = [agreement(), confident(), summing()]
NAMES = ["argmax", "with a test", "sums"]


def poisoned(agreed, party, counts):
    """A report whose shares sum to counts of the party's own choice, of either sign, instead of votes."""
    sharing, counts = sharing_of(agreed), np.array(counts)
    totals = np.broadcast_to(counts, (agreed.queries, agreed.classes)).astype(object) + 2**sharing.bits
    first = np.minimum(totals, sharing.largest)
    shares = first.astype("<u8"), (totals - first).astype("<u8")
    return shared_report(agreed, party, np.broadcast_to(counts, totals.shape), shares)


@pytest.mark.parametrize("agreed", AGREED, ids=NAMES)
def test_both_bodies_sum_to_the_partys_own_votes(agreed):
    votes = random_votes(agreed)
    reports = reports_of(agreed, votes)
    sums = [sum_reports(agreed, ((name, bodies[place]) for name, bodies in reports.items())) for place in (0, 1)]
    if agreed.reveal == "sums":
        assert ((sums[0] + sums[1]).view(np.int64)[:, 0] == votes.sum(axis=1)).all()
        return
    total = sums[0].astype(int) + sums[1].astype(int) - 3 * 2 ** sharing_of(agreed).bits
    np.testing.assert_array_equal(total, count_votes(votes, agreed.classes))


@pytest.mark.parametrize("agreed", AGREED, ids=NAMES)
def test_reports_on_the_same_votes_are_fresh_and_of_the_announced_size(agreed):
    one, other = (reports_of(agreed, random_votes(agreed))["north"] for _ in range(2))
    for place in (0, 1):
        assert len(one[place]) == report_size(agreed, "north")
        assert one[place][:16] != other[place][:16]
        assert one[place][16:80] != other[place][16:80]
    assert one[0][:16] == one[1][:16]
    assert one[0][16:80] != one[1][16:80]


def verdict(agreed, bodies):
    one, other = (check_report(agreed, "west", body, second=place == 1) for place, body in enumerate(bodies))
    return (one.transcript == other.transcript).all() and accepted(one.opened, other.opened)


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
@pytest.mark.parametrize("agreed", AGREED[:2], ids=NAMES[:2])
def test_shares_of_what_is_no_vote_are_refused_by_both_together(agreed, counts):
    assert verdict(agreed, reports_of(agreed, random_votes(agreed))["west"])
    assert not verdict(agreed, poisoned(agreed, "west", counts))


def test_halves_of_two_reports_do_not_belong_together():
    agreed = agreement()
    one, other = (reports_of(agreed, random_votes(agreed))["west"] for _ in range(2))
    assert not verdict(agreed, (one[0], other[1]))
    assert not verdict(agreed, (one[1], one[0]))
    first = check_report(agreed, "west", one[0], second=False)
    assert (first.transcript != check_report(agreement(sigma=2.0), "west", one[0], second=False).transcript).any()


def test_a_report_that_was_made_for_another_party_or_round_is_not_accepted():
    agreed = agreement(teachers=(("north", 1), ("west", 1)), minimum=1)
    votes = random_votes(agreed)[:, :1]
    assert verdict(agreed, make_report(agreed, "west", votes))
    assert not verdict(agreed, make_report(agreed, "north", votes))
    assert not verdict(agreed, make_report(agreement(collaboration="e" * 64, teachers=agreed.teachers, minimum=1),
                                           "west", votes))  # fmt: skip


@pytest.mark.parametrize("agreed", AGREED, ids=NAMES)
def test_malformed_bodies_are_refused(agreed):
    body, rng = reports_of(agreed, random_votes(agreed))["west"][1], np.random.default_rng(0)
    for wrong in (b"", body[:-1], body + bytes(8), bytes(rng.bytes(len(body)))):
        if agreed.reveal == "sums" and len(wrong) == len(body):
            continue  # every number is a share
        with pytest.raises(ProtocolError):
            check_report(agreed, "west", wrong, second=True)
    for _ in range(300):
        changed = bytearray(body)
        changed[rng.integers(len(body))] ^= 1 << rng.integers(8)
        try:
            check_report(agreed, "west", bytes(changed), second=True)
        except ProtocolError:
            continue


def test_shares_and_numbers_outside_their_range_are_refused():
    agreed = confident()
    body = bytearray(reports_of(agreed, random_votes(agreed))["north"][1])
    specs = report_specs(agreed, "north")
    largest = bytes([255] * 8)
    starts = (16, 16 + 8 * agreed.queries * agreed.classes, len(body) - 8)
    assert [spec[0] for spec in specs[1:3]] == ["<u8", "<u8"]
    for start in starts:
        changed = bytes(body[:start]) + largest + bytes(body[start + 8 :])
        with pytest.raises(ProtocolError, match=r"larger than|outside its field"):
            check_report(agreed, "north", changed, second=True)
    arrays_of(bytes(body), specs)


def test_votes_that_do_not_fit_the_agreement_are_refused():
    agreed = agreement()
    votes = random_votes(agreed)
    for wrong in (votes, votes[:-1, :2], votes[:, :1], votes[:, 0]):
        with pytest.raises(InputError, match="shape"):
            make_report(agreed, "north", wrong)
    with pytest.raises(InputError, match="classes"):
        make_report(agreed, "north", votes[:, :2] + agreed.classes)
    with pytest.raises(SettingError, match="no teacher party"):
        make_report(agreed, "east", votes[:, :2])
