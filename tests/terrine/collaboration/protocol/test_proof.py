"""The proof that shares are of votes: what it accepts, what it refuses, and what it shows."""

import os
import tracemalloc

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from terrine.collaboration.protocol.field import PRIME, add, drawn, reduced, subtract
from terrine.collaboration.protocol.proof import accepted, digits_of, opening, prove, split_digits

CONTEXT = b"a sharing"


def in_field(numbers):
    return np.array(np.asarray(numbers, object) % PRIME, np.uint64)


def split(numbers):
    one = drawn(numbers.size, os.urandom).reshape(numbers.shape)
    return one, subtract(numbers, one)


def made(counts, held, digits=None):
    """Shares of counts, of their digits or of those given, and the proofs that a party can make of them."""
    shares = split(in_field(counts))
    parts = split_digits(np.asarray(counts), held) if digits is None else split(in_field(digits))
    return shares, parts, prove(CONTEXT, held, shares, parts)


def opened(held, shares, digits, proofs, contexts=(CONTEXT, CONTEXT)):
    """True if both servers accept."""
    said = [opening(contexts[i], held, shares[i], digits[i], proofs[i], second=i == 1) for i in (0, 1)]
    return said[0][0] == said[1][0] and accepted(said[0][1], said[1][1])


def histograms(held, queries, classes, seed=0):
    votes = np.random.default_rng(seed).integers(0, classes, (queries, held))
    return np.stack([np.bincount(row, minlength=classes) for row in votes])


@pytest.mark.parametrize(("queries", "classes"), [(1, 2), (7, 3), (40, 10)])
@pytest.mark.parametrize("held", [1, 2, 3, 4, 7, 50])
def test_votes_are_accepted_whatever_they_are(held, queries, classes):
    assert opened(held, *made(histograms(held, queries, classes), held))
    unanimous = np.zeros((queries, classes), int)
    unanimous[:, -1] = held
    assert opened(held, *made(unanimous, held))


def test_opening_a_proof_of_many_counts_takes_three_times_the_memory_of_their_digits():
    held, queries, classes = 200, 2_000, 50
    shares, digits, proofs = made(histograms(held, queries, classes), held)
    tracemalloc.start()
    opening(CONTEXT, held, shares[0], digits[0], proofs[0], second=False)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 3.5 * 8 * queries * classes * digits_of(held)


def changed(**places):
    counts = histograms(3, 20, 4)
    counts[11] = [2, 1, 0, 0]
    for column, value in places.items():
        counts[11, int(column[1:])] = value
    return counts


@pytest.mark.parametrize(
    "counts",
    [
        changed(c0=3), changed(c0=1), changed(c0=30), changed(c0=10**6), changed(c2=-1, c0=3), changed(c0=4, c1=-1),
        changed(c0=4, c1=0, c2=-1), changed(c0=2 + PRIME // 2, c1=1 - PRIME // 2), np.zeros((20, 4), int),
        changed(c0=0, c1=0, c2=8, c3=-5), changed() * 2, -changed(),
    ],
)  # fmt: skip
def test_what_is_no_vote_is_refused(counts):
    assert not opened(3, *made(counts, 3))


def test_digits_that_are_none_are_refused_though_they_make_up_the_count():
    # 5 = 1 + 2 · 2 and −1 = 1 − 2 · 1: the counts sum to h = 3, and no count is what it should be.
    counts = histograms(3, 20, 4)
    counts[11] = [5, -1, -1, 0]
    digits = ((counts >> 1) & 1)[..., None]
    for cheat in ([2, -1, -1, 0], [0, 0, 0, 0], [1, 0, 0, 0], [PRIME // 2 + 3, PRIME // 2, PRIME // 2, 0]):
        digits[11, :, 0] = cheat
        assert not opened(3, *made(counts, 3, digits))
    counts[11] = [2, 1, 0, 0]
    digits[11, :, 0] = [0, 0, 0, 0]  # of an honest count, another digit
    assert not opened(3, *made(counts, 3, digits))
    digits[11, :, 0] = [1, 0, 0, 0]
    assert opened(3, *made(counts, 3, digits))


def test_a_proof_is_good_for_its_own_shares_and_its_own_sharing_alone():
    counts = histograms(3, 20, 4)
    shares, digits, proofs = made(counts, 3)
    others = made(histograms(3, 20, 4, seed=1), 3)
    assert not opened(3, others[0], others[1], proofs)
    assert not opened(3, shares, digits, others[2])
    assert not opened(3, shares, digits, proofs, (b"another", b"another"))
    assert not opened(3, shares, digits, proofs, (CONTEXT, b"another"))
    assert not opened(2, shares, digits, proofs)


def test_every_part_of_a_proof_counts():
    counts = histograms(3, 6, 3)
    shares, digits, proofs = made(counts, 3)
    for place in (0, 1):
        for field, array in proofs[place]._asdict().items():
            for index in range(0, array.size, max(1, array.size // 5)):
                spoilt = array.copy()
                spoilt.flat[index] ^= array.dtype.type(1)
                altered = [*proofs]
                altered[place] = proofs[place]._replace(**{field: spoilt})
                assert not opened(3, shares, digits, altered)


def test_claims_that_were_fitted_to_no_coins_pass_by_no_chance():
    # A prover that claims what would have been right for votes, at every halving, and hopes.
    passed = 0
    for _ in range(20):
        shares, digits, proofs = made(changed(c0=30), 3)
        honest = made(changed(), 3)[2]
        mixed = [
            own._replace(halvings=good.halvings, masks=own.masks) for own, good in zip(proofs, honest, strict=True)
        ]
        passed += opened(3, shares, digits, mixed)
    assert passed == 0


ONE, OTHER = np.array([[3, 0, 0, 0]] * 5), np.array([[0, 1, 1, 1]] * 5)


def test_what_is_opened_is_distributed_alike_whatever_the_votes():
    seen = {0: [], 1: []}
    for which, counts in ((0, ONE), (1, OTHER)):
        for _ in range(150):
            shares, digits, proofs = made(counts, 3)
            said = [opening(CONTEXT, 3, shares[i], digits[i], proofs[i], second=i == 1)[1] for i in (0, 1)]
            u, v, claim = (int(value) for value in add(reduced(said[0]), reduced(said[1])))
            assert u * v % PRIME == claim
            # Each server's part, both together, and what a server was sent.
            seen[which].append([*said[0], *said[1], u, v, claim, *proofs[1].halvings[-1], *proofs[0].halvings[0]])
    tables = np.array([[[int(value) >> 58 for value in row] for row in seen[which]] for which in (0, 1)])
    for column in range(tables.shape[2]):
        counts = [np.bincount(tables[which, :, column], minlength=8) for which in (0, 1)]
        assert chi2_contingency(counts).pvalue > 1e-9


@pytest.mark.parametrize("class_", [0, 1])
def test_a_server_that_shifts_its_shares_to_ask_for_a_vote_gets_the_same_refusal_whatever_it_is(class_):
    # +1 on one class and −1 on the other would be a vote again where the other one is what was voted for.
    counts = np.zeros((6, 2), int)
    counts[:, class_] = 1
    shares, digits, proofs = made(counts, 1)
    for shift in ([1, PRIME - 1], [PRIME - 1, 1]):
        queried = add(shares[1], np.broadcast_to(np.array(shift, np.uint64), (6, 2)))
        assert not opened(1, (shares[0], queried), digits, proofs)
        # Nor does it help to claim that the shares are those of the proof: the other side's part does not change.
        mine = opening(CONTEXT, 1, shares[0], digits[0], proofs[0], second=False)
        assert mine[0] == opening(CONTEXT, 1, shares[1], digits[1], proofs[1], second=True)[0]


def test_digits_are_as_many_as_a_count_needs():
    assert [digits_of(held) for held in (1, 2, 3, 4, 7, 8, 250)] == [1, 2, 2, 3, 3, 4, 8]
