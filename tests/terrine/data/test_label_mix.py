"""Labels per teacher, counted and compared as a plain loop does it."""

import numpy as np
import pytest

from terrine.data.label_mix import label_distances, label_histograms, row_shares, summarise
from terrine.data.partition import by_similarity, iid
from terrine.errors import InputError


@pytest.mark.parametrize(("teachers", "classes"), [(1, 2), (7, 3), (40, 10)])
def test_labels_per_teacher_are_what_a_loop_counts(teachers, classes):
    generator = np.random.default_rng(teachers)
    assignment, labels = generator.integers(0, teachers, 300), generator.integers(0, classes, 300)
    expected = np.zeros((teachers, classes), dtype=np.int64)
    for teacher, label in zip(assignment, labels, strict=True):
        expected[teacher, label] += 1
    histograms = label_histograms(assignment, labels, teachers, classes)
    assert histograms.dtype == np.int64
    assert np.array_equal(histograms, expected)
    whole = [float((labels == c).mean()) for c in range(classes)]
    for teacher, distance in enumerate(label_distances(histograms)):
        row = expected[teacher]
        if row.sum():
            assert distance == pytest.approx(0.5 * sum(abs(row[c] / row.sum() - whole[c]) for c in range(classes)))


def test_shares_sum_to_one_and_distances_span_from_equal_to_alone():
    equal = np.array([[5, 5], [50, 50]])
    assert row_shares(equal).sum(axis=1).tolist() == [1, 1]
    assert label_distances(equal).tolist() == [0, 0]
    alone = np.array([[10, 0], [0, 990]])
    assert label_distances(alone)[0] == pytest.approx(0.99)


def test_sorted_labels_differ_more_than_random_ones():
    labels = np.random.default_rng(0).integers(0, 10, 2000)
    dealt = summarise(label_histograms(iid(2000, 20, seed=0), labels, 20, 10))
    sorted_ = summarise(label_histograms(by_similarity(labels, 20, 0, seed=0), labels, 20, 10))
    assert dealt["label_distance"]["mean"] < 0.2 < 0.7 < sorted_["label_distance"]["mean"]
    assert dealt["teachers_without_some_class"] == 0
    assert sorted_["teachers_without_some_class"] == 20
    assert sorted_["classes_per_teacher"]["largest"] <= 2
    assert sorted_["records_per_teacher"] == {"smallest": 100, "median": 100.0, "largest": 100}


def test_teachers_without_records_are_not_part_of_the_mean():
    histograms = np.array([[10, 0], [0, 0], [0, 30]])
    assert label_distances(histograms).tolist() == [0.75, 0, 0.25]
    assert summarise(histograms)["label_distance"]["mean"] == 0.5
    assert row_shares(histograms)[1].tolist() == [0, 0]


def test_arrays_of_different_lengths_are_refused():
    with pytest.raises(InputError, match=r"shape \[3\], the labels have \[4\]"):
        label_histograms(np.zeros(3, dtype=np.int64), np.zeros(4, dtype=np.int64), 1, 1)
