"""Names of records and groups as numbers, and what each of them draws by itself: a teacher, a side of the split.

A dataset is a map from names to contents. The name of a record is content-free: the path of its file relative to its
class folder, the path in a table of images, an entry of `ids`, or else its place; the name of a group is its text. In
arrays a name is a *code*: 63 bits of its BLAKE2b digest, so equal names have equal codes, and the code of a name does
not depend on which other names there are.

What is decided about a unit (its teacher, its side of a split) is a function of a seed and its own code. So a unit that
is added, removed, renamed or filled with other contents moves no other unit. The guarantee holds for every such
function, also for one that the world knows: the hash need neither be secret nor resist somebody who picks names, who
could only crowd units of one teacher, and a public seed deals a benchmark alike on every machine. It has to mix well,
so that parts are of near-equal size, and to be fast. Two names of one code (one chance in 2,000 among a hundred
million) would be treated as one unit, which is safe.

>>> train, test = split_units(place_codes(1000), test_fraction=0.2, seed=0)
>>> len(train) + len(test)
1000

Labels do not influence the split. So shares of classes, and the size of the test split, are random; a rare class may
be missing on one side.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from terrine.determinism.randomness import derive_seed
from terrine.errors import InputError

_CHUNK = 1 << 18
"""Codes hashed at a time: they stay in the processor's cache, and copies of a hundred million are never made."""


def name_codes(names: Iterable[str]) -> np.ndarray:
    """Return int64 [N], none negative: the code of each name."""
    return np.fromiter((_code(name) for name in names), dtype=np.int64)


def place_codes(count: int, prefix: str = "") -> np.ndarray:
    """Return int64 [count]: codes of records that nothing names but their place, "0", "1", ... behind `prefix`."""
    return name_codes(f"{prefix}{place}" for place in range(count))


def draws(codes: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """Return uint64 [N]: what each unit draws for `purpose`, a function of the seed, the purpose and its own code.

    `codes` is int64 [N]. Equal codes draw alike, different codes differently; draws for another purpose or seed have
    nothing to do with these. Two rounds of the finaliser of SplitMix64 (Steele, Lea and Flood 2014), a key before each.
    """
    first, second = (np.uint64(derive_seed(seed, purpose, number)) for number in (0, 1))
    drawn = np.empty(len(codes), dtype=np.uint64)
    for start in range(0, len(codes), _CHUNK):
        mixed = _mix(np.ascontiguousarray(codes[start : start + _CHUNK]).view(np.uint64) + first)
        drawn[start : start + _CHUNK] = _mix(mixed ^ second)
    return drawn


def shares(codes: np.ndarray, seed: int, purpose: str) -> np.ndarray:
    """Return float64 [N], uniform in [0, 1): `draws` as numbers to compare with a share of all units."""
    uniform: np.ndarray = np.ldexp((draws(codes, seed, purpose) >> np.uint64(11)).astype(np.float64), -53)
    return uniform


def count_units(codes: np.ndarray) -> int:
    """Return how many different codes there are; sorting is seventy times as fast as `numpy.unique` on ten million."""
    return int(np.count_nonzero(np.diff(np.sort(codes)))) + (len(codes) > 0)


def _code(name: str) -> int:
    # File names that are no UTF-8 hold surrogates, which are names like others.
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _mix(values: np.ndarray) -> np.ndarray:
    """Return the finaliser of SplitMix64, a bijection of uint64; arithmetic is modulo 2^64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def split_units(units: np.ndarray, test_fraction: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (train, test): ascending indices that share no record, cover all, and share no unit.

    `units` is int64 [N], the code of each record's group, or of its name where there are no groups
    (`terrine.data.units`). A unit is held out when what it draws is below `test_fraction`: about that share of units,
    always the same ones for one `seed`. Raises InputError when a side is empty.
    """
    in_test = shares(units, seed, "data.split") < test_fraction
    if in_test.all() or not in_test.any():
        count = count_units(units)
        what = f"{len(units)} records" if count == len(units) else f"{count} groups or names of {len(units)} records"
        raise InputError(
            f"{what} are too few to draw a test split of {test_fraction} from: one side is empty. Give the split "
            "yourself, bring more, or change data.test_fraction."
        )
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)
