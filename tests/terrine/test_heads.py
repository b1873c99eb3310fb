import numpy as np
import pytest

from terrine.errors import InputError
from terrine.heads import LinearHead, initial_head


def test_a_head_survives_the_way_through_its_arrays():
    head = initial_head(features=7, classes=3, seed=0)
    again = LinearHead.from_arrays(head.to_arrays())
    assert np.array_equal(again.weight, head.weight)
    assert np.array_equal(again.bias, head.bias)


def test_the_initial_head_depends_on_the_seed_alone_and_is_small():
    one, same, other = (initial_head(100, 10, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.weight, same.weight)
    assert not np.array_equal(one.weight, other.weight)
    assert 0.09 < np.abs(one.weight).max() <= 0.1
    assert not one.bias.any()


def test_arrays_that_are_no_head_are_refused():
    with pytest.raises(InputError, match=r"\(3,\) and \(3,\)"):
        LinearHead(np.zeros(3), np.zeros(3))
    with pytest.raises(InputError, match="weight and bias"):
        LinearHead.from_arrays({"weight": np.zeros((2, 3))})
