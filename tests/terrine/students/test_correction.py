"""The transition matrix of released labels against noise that is drawn."""

import numpy as np
import pytest

from terrine.errors import SettingError
from terrine.students.answers import transition_matrix


@pytest.mark.parametrize(
    ("sigma", "teachers", "classes"), [(69.0, 200, 10), (40.0, 50, 3), (5.0, 4, 2), (300.0, 10, 7)]
)
def test_the_matrix_is_how_often_a_unanimous_vote_is_released_as_each_class(sigma, teachers, classes):
    draws = 200_000
    generator = np.random.default_rng(0)
    histogram = np.zeros(classes)
    histogram[1] = teachers
    released = (histogram + sigma * generator.normal(size=(draws, classes))).argmax(1)
    frequency = np.bincount(released, minlength=classes) / draws
    row = transition_matrix(sigma, teachers, classes)[1]
    assert (np.abs(frequency - row) < 5 * np.sqrt(row * (1 - row) / draws) + 1e-12).all()


def test_two_classes_have_the_closed_form():
    from scipy.stats import norm

    for sigma, teachers in ((3.0, 4), (50.0, 20), (1.0, 9)):
        right = transition_matrix(sigma, teachers, 2)[0, 0]
        assert right == pytest.approx(norm.cdf(teachers / (np.sqrt(2) * sigma)), rel=1e-12)


def test_rows_sum_to_one_from_no_noise_to_nothing_but_noise():
    for sigma in (1e-6, 1.0, 1e6):
        matrix = transition_matrix(sigma, 100, 5)
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-12)
        assert (matrix >= 0).all()
    np.testing.assert_allclose(transition_matrix(1e-6, 100, 5), np.eye(5), atol=1e-12)
    np.testing.assert_allclose(transition_matrix(1e9, 100, 5), np.full((5, 5), 0.2), atol=1e-6)


@pytest.mark.parametrize("arguments", [(0.0, 10, 3), (1.0, 0, 3), (1.0, 10, 1), (float("nan"), 10, 3)])
def test_impossible_releases_are_refused(arguments):
    with pytest.raises(SettingError, match="forward correction"):
        transition_matrix(*arguments)
