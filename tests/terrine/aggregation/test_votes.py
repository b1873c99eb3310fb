"""Votes and histograms where they enter."""

import numpy as np
import pytest

from terrine.aggregation.votes import count_votes, validate_histograms, validate_votes
from terrine.errors import InputError


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64])
@pytest.mark.parametrize(("queries", "teachers", "classes"), [(0, 3, 2), (1, 1, 2), (7, 5, 3), (700, 250, 10)])
def test_histograms_count_each_vote_once(queries: int, teachers: int, classes: int, dtype: type) -> None:
    votes = np.random.default_rng(0).integers(0, classes, (queries, teachers)).astype(dtype)
    expected = np.zeros((queries, classes), dtype=np.int64)
    for query in range(queries):
        for teacher in range(teachers):
            expected[query, votes[query, teacher]] += 1
    found = count_votes(votes, classes)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected)


def test_a_query_with_more_teachers_than_a_chunk_is_counted() -> None:
    votes = np.random.default_rng(1).integers(0, 4, (2, 70_000))
    np.testing.assert_array_equal(count_votes(votes, 4), [np.bincount(row, minlength=4) for row in votes])


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        (np.zeros(5, dtype=np.int64), "Labels"),
        (np.zeros((5, 0), dtype=np.int64), "at least one teacher"),
        (np.zeros((5, 2)), "integers"),
        (np.array([[0, 1], [1, 3]]), "Teacher 1 voted 3 on query 1"),
        (np.array([[0, -1], [1, 2]]), "Teacher 1 voted -1 on query 0"),
    ],
)
def test_what_is_no_vote_is_refused_with_its_place(votes: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        validate_votes(votes, 3)


def test_votes_for_fewer_than_two_classes_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 classes"):
        validate_votes(np.zeros((2, 2), dtype=int), 1)


def test_histograms_that_are_some_pass_unchanged() -> None:
    histograms = np.array([[3, 1], [0, 4]], dtype=np.uint16)
    found = validate_histograms(histograms)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, histograms)


@pytest.mark.parametrize(
    ("histograms", "message"),
    [
        (np.array([3, 1, 0]), "Labels, one per query, are not histograms"),
        (np.array([[3.0, 1.0]]), "without noise"),
        (np.array([[5, -1]]), "counts -1 votes"),
        (np.array([[3, 1], [2, 1]]), "query 1 sums to 3"),
        (np.array([[0, 0]]), "sums to 0"),
    ],
)
def test_what_is_no_histogram_is_refused(histograms: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        validate_histograms(histograms)


def test_votes_in_the_place_of_histograms_are_refused() -> None:
    votes = np.random.default_rng(2).integers(0, 10, (50, 10))
    with pytest.raises(InputError, match="Labels or votes"):
        validate_histograms(votes)
