"""Name codes of records and groups, and independent draws per unit: its teacher and its split.

A dataset is a map from names to contents. The name of a record is independent of its content: the path of its file
below the class folder, the path in a table of images, an entry of `ids`, or its position. The name of a group is its
text. Arrays contain the *code* of a name: 63 bits of its BLAKE2b digest, which does not depend on other names.

The teacher and the split of a unit are functions of a public seed and its own code, so adding, removing, renaming or
changing a unit moves no other unit. The privacy guarantee holds for every such function. The hash need not be secret or
resist chosen names, which could only overload one teacher. The hash must be fast and mix well, so that parts have
similar sizes. Two names with one code (probability 1 in 2,000 among a hundred million) would be one unit, which is
safe.

>>> train, test = split_units(place_codes(1000), test_fraction=0.2, seed=0)
>>> len(train) + len(test)
1000

Labels do not influence the split. The size of the test split and its classes are therefore random, and a rare class
may be missing in one of the splits.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from terrine.determinism.randomness import derive_seed
from terrine.errors import InputError

_CHUNK = 1 << 18
"""Codes per batch, which stay in the processor's cache."""


def name_codes(names: Iterable[str]) -> np.ndarray:
    """Return the code of each name, int64 [N], non-negative."""
    return np.fromiter((_code(name) for name in names), dtype=np.int64)


def place_codes(count: int, prefix: str = "") -> np.ndarray:
    """Return the codes of the names "0", "1", ... after `prefix`, int64 [count]."""
    return name_codes(f"{prefix}{place}" for place in range(count))


def draws(codes: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """Return a pseudorandom number for each code, int64 [N], as uint64 [N].

    It is a function of seed, purpose and code: two keyed rounds of SplitMix64's finaliser (Steele, Lea and Flood 2014).
    Different codes get different numbers; other seeds and purposes give independent ones.
    """
    first, second = (np.uint64(derive_seed(seed, purpose, number)) for number in (0, 1))
    drawn = np.empty(len(codes), dtype=np.uint64)
    for start in range(0, len(codes), _CHUNK):
        mixed = _mix(np.ascontiguousarray(codes[start : start + _CHUNK]).view(np.uint64) + first)
        drawn[start : start + _CHUNK] = _mix(mixed ^ second)
    return drawn


def shares(codes: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """Return `draws` as float64 [N], uniform in [0, 1)."""
    uniform: np.ndarray = np.ldexp((draws(codes, seed, purpose) >> np.uint64(11)).astype(np.float64), -53)
    return uniform


def count_units(codes: np.ndarray) -> int:
    """Return the number of distinct codes; sorting is much faster than `numpy.unique`."""
    return int(np.count_nonzero(np.diff(np.sort(codes)))) + (len(codes) > 0)


def _code(name: str) -> int:
    # File names that are not UTF-8 contain surrogates.
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _mix(values: np.ndarray) -> np.ndarray:
    """Return SplitMix64's finaliser, a bijection of uint64; arithmetic is modulo 2^64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def split_units(units: np.ndarray, test_fraction: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ascending indices of the training and of the test records; no unit is in both.

    A unit is held out if its draw is below `test_fraction`.

    Args:
        units: Code of each record's group or name, int64 [N].
        test_fraction: Approximate share of the units that is held out.
        seed: Seed of the draws.

    Raises:
        InputError: one of the splits is empty.
    """
    in_test = shares(units, seed, "data.split") < test_fraction
    if in_test.all() or not in_test.any():
        count = count_units(units)
        what = f"{len(units)} records" if count == len(units) else f"{count} groups or names of {len(units)} records"
        raise InputError(
            f"{what} are too few for a test split of {test_fraction}: one side is empty. Give a split, add records, or "
            "change data.test_fraction."
        )
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)
