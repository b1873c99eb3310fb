"""Arithmetic modulo 2^61 − 1, against Python's whole numbers."""

import numpy as np
import pytest

from terrine.collaboration.protocol.field import (
    PRIME,
    add,
    drawn,
    multiply,
    product,
    reduced,
    subtract,
    total,
)

EDGES = [0, 1, 2, 2**29, 2**32 - 1, 2**32, 2**60, PRIME - 2, PRIME - 1]


@pytest.fixture(scope="module")
def pairs():
    generator = np.random.default_rng(0)
    left = np.concatenate([np.repeat(EDGES, len(EDGES)), generator.integers(0, PRIME, 20_000)]).astype(np.uint64)
    right = np.concatenate([np.tile(EDGES, len(EDGES)), generator.integers(0, PRIME, 20_000)]).astype(np.uint64)
    return left, right


def test_sums_differences_and_products_are_those_of_whole_numbers(pairs):
    left, right = pairs
    numbers = list(zip(left.tolist(), right.tolist(), strict=True))
    assert add(left, right).tolist() == [(a + b) % PRIME for a, b in numbers]
    assert subtract(left, right).tolist() == [(a - b) % PRIME for a, b in numbers]
    assert multiply(left, right).tolist() == [a * b % PRIME for a, b in numbers]
    assert multiply(left, PRIME - 1).tolist() == [-a % PRIME for a in left.tolist()]
    assert product(left, right) == sum(a * b for a, b in numbers) % PRIME
    assert total(left) == sum(left.tolist()) % PRIME


def test_all_numbers_of_64_bits_are_reduced():
    numbers = [0, PRIME - 1, PRIME, PRIME + 1, 2 * PRIME, 2**63, 2**64 - 1]
    assert reduced(np.array(numbers, np.uint64)).tolist() == [number % PRIME for number in numbers]


def test_what_is_drawn_is_below_the_prime_and_spread_over_all_of_it():
    assert drawn(1, lambda size: b"\xff" * size).tolist() == [0]
    numbers = drawn(8_000, np.random.default_rng(0).bytes)
    assert numbers.max() < PRIME
    counts = np.bincount((numbers >> np.uint64(58)).astype(int), minlength=8)
    assert abs(counts - 1_000).max() < 150
