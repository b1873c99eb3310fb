import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from terrine.data.units import place_codes, shares, split_units
from terrine.errors import InputError


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5, 0.83])
def test_sides_are_disjoint_cover_and_have_about_their_share(fraction: float) -> None:
    train, test = split_units(place_codes(5000), fraction, seed=1)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(5000))
    assert train.tolist() == sorted(train.tolist())
    assert test.tolist() == sorted(test.tolist())
    bound = math.sqrt(5000 * math.log(2e9) / 2)  # Hoeffding: a fair draw is further off with probability 1e-9
    assert abs(len(test) - 5000 * fraction) < bound


def test_equal_seeds_give_equal_splits_and_others_do_not() -> None:
    units = place_codes(200)
    assert np.array_equal(split_units(units, 0.2, seed=3)[1], split_units(units, 0.2, seed=3)[1])
    assert not np.array_equal(split_units(units, 0.2, seed=3)[1], split_units(units, 0.2, seed=4)[1])


@given(st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=40), st.floats(0.05, 0.95), st.integers(0, 5))
def test_a_unit_is_held_out_when_its_own_draw_is_below_the_fraction(units, fraction, seed) -> None:
    """No group is on both sides, and other units make no difference."""
    alone = {unit: bool(shares(np.array([unit]), seed, "data.split")[0] < fraction) for unit in units}
    assume(len(set(alone.values())) == 2)
    train, test = split_units(np.array(units), fraction, seed=seed)
    assert {units[index] for index in test} == {unit for unit in units if alone[unit]}
    assert {units[index] for index in train} == {unit for unit in units if not alone[unit]}


def test_a_split_that_leaves_a_side_empty_is_refused() -> None:
    with pytest.raises(InputError, match=r"1 groups or names of 10 records are too few for a test split of 0\.2"):
        split_units(np.zeros(10, dtype=np.int64), 0.2, seed=0)
    with pytest.raises(InputError, match="1 records are too few"):
        split_units(np.zeros(1, dtype=np.int64), 0.2, seed=0)
    with pytest.raises(InputError, match="0 records are too few"):
        split_units(np.zeros(0, dtype=np.int64), 0.2, seed=0)
