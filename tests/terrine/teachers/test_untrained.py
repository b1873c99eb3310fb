"""Teachers without records vote by a rule that reads none."""

import numpy as np
import pytest

from terrine.teachers.ensemble import votes_without_records


def test_a_vote_is_a_function_of_seed_teacher_and_query_whoever_else_is_asked():
    whole = votes_without_records(range(8), 50, 10, seed=3)
    assert whole.shape == (50, 8)
    assert whole.dtype == np.uint8
    some = votes_without_records([6, 1], 40, 10, seed=3)
    assert some.tolist() == [[int(whole[query, teacher]) for teacher in (6, 1)] for query in range(40)]
    assert not np.array_equal(whole, votes_without_records(range(8), 50, 10, seed=4))
    assert len({column.tobytes() for column in whole.T}) == 8


@pytest.mark.parametrize("classes", [2, 10, 300])
def test_votes_are_spread_evenly_over_the_classes(classes):
    votes = votes_without_records(range(200), 1000, classes, seed=0)
    expected = votes.size / classes
    # Seven standard deviations of a count; the seed is fixed.
    assert np.abs(np.bincount(votes.ravel(), minlength=classes) - expected).max() < 7 * np.sqrt(expected)
    assert votes.max() == classes - 1


def test_no_query_and_no_teacher_give_no_votes():
    assert votes_without_records([], 3, 4, seed=0).shape == (3, 0)
    assert votes_without_records([1], 0, 4, seed=0).shape == (0, 1)
