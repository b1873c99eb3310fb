"""Codes and draws: functions of a unit's own name, as plain loops compute them, and uniform."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrine.data.units import _CHUNK, count_units, draws, name_codes, place_codes, shares
from terrine.determinism.randomness import derive_seed

WORD = 2**64
CODES = name_codes(f"patient {number}" for number in range(20_000))


def plain_mix(value: int) -> int:
    """SplitMix64's finaliser as its paper writes it, on Python's integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % WORD
    return value ^ (value >> 31)


def plain_draws(codes: list[int], seed: int, purpose: str) -> list[int]:
    first, second = derive_seed(seed, purpose, 0), derive_seed(seed, purpose, 1)
    return [plain_mix(plain_mix((code + first) % WORD) ^ second) for code in codes]


def test_the_finaliser_is_that_of_splitmix64() -> None:
    # The first outputs of the generator with state 0, as published with it: the finaliser of multiples of its gamma.
    assert plain_mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    assert plain_mix(2 * 0x9E3779B97F4A7C15 % WORD) == 0x6E789E6AA1B965F4


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30),
    st.integers(0, 2**40),
    st.sampled_from(["a", "partition.deal"]),
)
def test_draws_are_those_of_a_plain_loop(codes: list[int], seed: int, purpose: str) -> None:
    drawn = draws(np.array(codes, dtype=np.int64), seed, purpose)
    assert drawn.dtype == np.uint64
    assert drawn.tolist() == plain_draws(codes, seed, purpose)
    uniform = [(value >> 11) / 2**53 for value in plain_draws(codes, seed, purpose)]
    assert shares(np.array(codes, dtype=np.int64), seed, purpose).tolist() == uniform


def test_more_codes_than_are_hashed_at_a_time_draw_what_each_draws_alone() -> None:
    codes = np.random.default_rng(0).integers(0, 2**63, 2 * _CHUNK + 7)
    drawn = draws(codes[::-1], 1, "x")
    for index in (0, 6, 7, _CHUNK - 1, _CHUNK, _CHUNK + 1, 2 * _CHUNK + 6):
        assert drawn[index] == draws(codes[::-1][index : index + 1], 1, "x")[0]


@given(st.lists(st.text(max_size=12), max_size=20))
def test_codes_are_63_bits_of_the_digest_of_each_name_alone(names: list[str]) -> None:
    codes = name_codes(names)
    assert codes.dtype == np.int64
    assert codes.tolist() == [
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1 for name in names
    ]


def test_a_file_name_that_is_no_text_has_a_code_too() -> None:
    assert len(set(name_codes(["a\udcff", "a\udcfe", "a"]).tolist())) == 3


def test_places_are_named_by_their_numbers() -> None:
    assert np.array_equal(place_codes(12), name_codes(str(place) for place in range(12)))
    assert np.array_equal(place_codes(2, "val_"), name_codes(["val_0", "val_1"]))
    assert place_codes(0).shape == (0,)


@given(st.lists(st.integers(-3, 3), max_size=20))
def test_units_are_counted_as_a_set_counts_them(codes: list[int]) -> None:
    assert count_units(np.array(codes, dtype=np.int64)) == len(set(codes))


def normal_bound(cells: int) -> float:
    """Uniform counts have a larger chi-squared statistic with probability below 1e-9 (Laurent and Massart 2000)."""
    degrees, log = cells - 1, math.log(1e9)
    return degrees + 2 * math.sqrt(degrees * log) + 2 * log


@pytest.mark.parametrize("codes", [CODES, np.arange(20_000), np.arange(20_000) << 40], ids=["names", "numbers", "high"])
@pytest.mark.parametrize("cells", [2, 7, 64, 250])
def test_draws_fill_all_residues_and_all_shares_alike(codes: np.ndarray, cells: int) -> None:
    """Even for consecutive numbers as codes."""
    for counts in (
        np.bincount((draws(codes, 3, "deal") % np.uint64(cells)).astype(int), minlength=cells),
        np.bincount((shares(codes, 3, "deal") * cells).astype(int), minlength=cells),
    ):
        expected = len(codes) / cells
        assert np.square(counts - expected).sum() / expected < normal_bound(cells)


@pytest.mark.parametrize("codes", [CODES, np.arange(20_000)], ids=["names", "numbers"])
@pytest.mark.parametrize("other", [(3, "split"), (4, "deal")], ids=["purpose", "seed"])
def test_draws_for_another_purpose_or_seed_tell_nothing_about_these(codes: np.ndarray, other: tuple[int, str]) -> None:
    one = (draws(codes, 3, "deal") % np.uint64(8)).astype(int)
    two = (draws(codes, *other) % np.uint64(8)).astype(int)
    pairs = np.bincount(8 * one + two, minlength=64)
    assert np.square(pairs - len(codes) / 64).sum() / (len(codes) / 64) < normal_bound(64)


def test_different_codes_never_draw_alike() -> None:
    assert count_units(draws(CODES, 0, "deal").view(np.int64)) == count_units(CODES) == len(CODES)
