import numpy as np
import pytest
from scipy.stats import chisquare

from terrine.collaboration.protocol.field import PRIME
from terrine.collaboration.protocol.shares import (
    bits_of,
    count_bits,
    modulo,
    random_shares,
    share_type,
    sharing_of,
    signed,
    split,
    split_whole,
    threshold_bits,
    whole_thresholds,
    whole_votes,
)
from terrine.errors import SettingError
from tests.collaboration_sessions import agreement, confident, summing


@pytest.mark.parametrize(("teachers", "sigma"), [(1, 0.01), (50, 15), (200, 40), (250, 40), (100, 2.0), (4, 1.0)])
def test_a_count_has_the_fewest_bits_that_hold_it_with_its_noise(teachers, sigma):
    bits = count_bits(teachers, sigma)
    assert 2 ** (bits - 1) > teachers + 12 * sigma
    assert bits == 2 or 2 ** (bits - 2) <= teachers + 12 * sigma


def test_counts_that_no_share_holds_are_refused():
    with pytest.raises(SettingError, match="bits"):
        count_bits(10, 2.0**30)


@pytest.mark.parametrize(("parties", "held", "queries"), [(1, 1, 1), (3, 2, 40), (5, 50, 10_000), (250, 1, 8_000)])
def test_a_test_has_the_fewest_bits_that_hold_every_partys_whole_shares(parties, held, queries):
    agreed = confident(teachers=tuple((f"p{number}", held) for number in range(parties)), queries=queries, minimum=1)
    sharing, bits = sharing_of(agreed), threshold_bits(agreed)
    assert sharing.whole
    assert sharing.kind == "<u8"
    # A mask hides a teacher's votes on all queries up to 2^-40, and no wider than that.
    assert 2 * queries * 2**40 <= 2**sharing.bits < 4 * queries * 2**40
    assert sharing.largest == 2**sharing.bits + parties * held
    # Above the largest honest sum there is a number left, which no sum reaches.
    assert parties * sharing.largest < 2**bits - 1 < 2**63
    assert 2 ** (bits - 1) <= parties * sharing.largest + 1


def test_votes_are_shared_alike_whatever_is_opened_and_no_wider_than_their_proof_allows():
    for agreed in (agreement(), agreement(reveal="histogram")):
        assert sharing_of(agreed) == sharing_of(confident())
    most = 2**18
    # For any two shares, the sum differs from a sum of votes by less than the prime.
    assert 2 * sharing_of(agreement(queries=most)).largest + 10**6 < PRIME
    with pytest.raises(SettingError, match="At most 262,144 queries"):
        sharing_of(agreement(queries=most + 1))
    assert not sharing_of(summing(queries=most + 1)).whole


def test_shares_that_would_not_fit_are_refused_with_what_would():
    teachers = tuple((f"p{number}", 4) for number in range(50))
    with pytest.raises(SettingError, match="at most 41,943 queries are possible"):
        sharing_of(confident(teachers=teachers, queries=100_000))
    sharing_of(confident(teachers=teachers, queries=41_943))


@pytest.mark.parametrize("bits", [41, 47, 55])
def test_whole_shares_sum_to_the_votes_and_the_masks_range(bits):
    values = np.random.default_rng(0).integers(0, 300, (30, 5))
    mask, other = split_whole(values, bits)
    assert mask.dtype == other.dtype == np.uint64
    assert int(mask.max()) < 2**bits
    for a, b, value in zip(mask.ravel().tolist(), other.ravel().tolist(), values.ravel().tolist(), strict=True):
        assert a + b == value + 2**bits


def test_each_whole_share_looks_alike_whatever_is_shared():
    for value in (0, 250):
        for share in split_whole(np.full((16_000, 1), value), 45):
            for shift in (0, 20, 41):
                assert chisquare(np.bincount((share.ravel() >> shift & 15).astype(int), minlength=16)).pvalue > 1e-12


@pytest.mark.parametrize("bits", [2, 7, 8, 9, 11, 16, 17, 32])
def test_shares_sum_to_what_was_shared_and_fit_their_type(bits):
    values = np.random.default_rng(0).integers(0, 2 ** (bits - 1), (30, 5))
    one, other = split(values, bits)
    assert one.dtype == other.dtype == share_type(bits)
    for share in (one, other):
        assert int(share.max()) < 2**bits
    for a, b, value in zip(one.ravel().tolist(), other.ravel().tolist(), values.ravel().tolist(), strict=True):
        assert (a + b) % 2**bits == value


def test_each_share_is_uniform_whatever_is_shared():
    for value in (0, 3):
        for share in split(np.full((16_000, 1), value), 4):
            assert chisquare(np.bincount(share.ravel(), minlength=16)).pvalue > 1e-9


def test_random_shares_are_never_the_same_twice():
    assert not np.array_equal(random_shares((64,), 32), random_shares((64,), 32))


def test_numbers_with_a_sign_survive_the_modulus():
    for bits in (2, 5, 11, 32):
        numbers = np.array([-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1])
        assert np.array_equal(signed(modulo(numbers, bits), bits), numbers)


def test_rounding_noise_commutes_with_adding_votes():
    noise = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999999, -0.50000001])
    for votes in range(-3, 9):
        assert np.array_equal(whole_votes(noise) + votes, np.floor(noise + votes + 0.5))
    assert whole_votes(np.array([-3, 0, 7])).tolist() == [-3, 0, 7]


@pytest.mark.parametrize("threshold", [-3.0, 0.0, 0.1, 2.5, 3.0, 7.3, 99.0])
def test_the_whole_threshold_decides_as_the_noisy_comparison_does(threshold):
    rng = np.random.default_rng(1)
    lattice = np.rint(rng.normal(0, 3, 200) * 2**40) / 2**40
    near = threshold - np.arange(-1, 9) + np.array([[0.0], [2**-45], [-(2**-45)]])
    noise = np.concatenate((lattice, near.ravel(), [-1e6, 1e6]))
    thresholds = whole_thresholds(threshold, noise)
    for eta, whole in zip(noise.tolist(), thresholds.tolist(), strict=True):
        # Votes far from the threshold and right beside it.
        for votes in (*range(-3, 12), whole - 2, whole - 1, whole, whole + 1, -(10**6), 10**6):
            assert (votes >= whole) == (votes + eta >= threshold)


def test_a_threshold_is_never_clipped_to_what_honest_votes_can_be():
    assert whole_thresholds(3.0, [-1e4, 1e4, 0.5]).tolist() == [10_003, -9_997, 3]


def test_the_whole_threshold_is_right_where_a_difference_has_to_be_rounded():
    threshold, teachers = 128.1, 130
    steps = np.arange(-80, 81) * 2.0**-50
    noise = ((threshold - np.arange(124, 131))[:, None] + steps).ravel()
    wrong = 0
    for eta, whole in zip(noise.tolist(), whole_thresholds(threshold, noise).tolist(), strict=True):
        assert [votes >= whole for votes in range(teachers + 1)] == [
            votes + eta >= threshold for votes in range(teachers + 1)
        ]
        wrong += int(np.ceil(threshold - eta)) != whole
    assert wrong > 0


def test_bits_come_class_by_class_with_the_lowest_first():
    shares = np.random.default_rng(2).integers(0, 2**11, (6, 3)).astype(np.uint32)
    bits = bits_of(shares, 11)
    for query in range(6):
        for label in range(3):
            for place in range(11):
                assert bits[label * 11 + place, query] == int(shares[query, label]) >> place & 1


def test_numbers_of_more_than_32_bits_keep_all_of_them():
    number = 0b1011 << 57 | 0b101
    assert bits_of(np.array([[number]], np.uint64), 62).ravel().tolist() == [number >> place & 1 for place in range(62)]
