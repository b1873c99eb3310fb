import numpy as np
import pytest
from scipy.stats import chisquare

from terrine.collaboration.shares import (
    bits_of,
    count_bits,
    modulo,
    random_shares,
    share_type,
    signed,
    split,
    threshold_bits,
    whole_thresholds,
    whole_votes,
)
from terrine.errors import SettingError


@pytest.mark.parametrize(("teachers", "sigma"), [(1, 0.01), (50, 15), (200, 40), (250, 40), (100, 2.0), (4, 1.0)])
def test_a_count_has_the_fewest_bits_that_hold_it_with_its_noise(teachers, sigma):
    bits = count_bits(teachers, sigma)
    assert 2 ** (bits - 1) > teachers + 12 * sigma
    assert bits == 2 or 2 ** (bits - 2) <= teachers + 12 * sigma


def test_counts_that_no_share_holds_are_refused():
    with pytest.raises(SettingError, match="bits"):
        count_bits(10, 2.0**30)


@pytest.mark.parametrize("teachers", [1, 2, 3, 4, 7, 8, 50, 250, 255, 256])
def test_a_test_has_the_fewest_bits_that_hold_a_count_less_its_threshold(teachers):
    bits = threshold_bits(teachers)
    assert 2 ** (bits - 1) >= teachers + 1 > 2 ** (bits - 2) or bits == 2
    lowest, highest = 0 - (teachers + 1), teachers - 0
    assert signed(modulo([lowest, highest], bits), bits).tolist() == [lowest, highest]


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
    teachers = 7
    rng = np.random.default_rng(1)
    lattice = np.rint(rng.normal(0, 3, 200) * 2**40) / 2**40
    near = threshold - np.arange(-1, 9) + np.array([[0.0], [2**-45], [-(2**-45)]])
    noise = np.concatenate((lattice, near.ravel(), [-1e6, 1e6]))
    thresholds = whole_thresholds(threshold, noise, teachers)
    for eta, whole in zip(noise.tolist(), thresholds.tolist(), strict=True):
        for votes in range(teachers + 1):
            assert (votes >= whole) == (votes + eta >= threshold)


def test_the_whole_threshold_is_right_where_a_difference_has_to_be_rounded():
    threshold, teachers = 128.1, 130
    steps = np.arange(-80, 81) * 2.0**-50
    noise = ((threshold - np.arange(124, 131))[:, None] + steps).ravel()
    wrong = 0
    for eta, whole in zip(noise.tolist(), whole_thresholds(threshold, noise, teachers).tolist(), strict=True):
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
