"""Label-sensitive annotation: frequencies of equation 4, among the student's top-k."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from terrine.errors import InputError, SettingError
from terrine.privacy.randomised_response import ReplayResponse, SecureResponse, keep_probability
from terrine.transcription.annotation import answers, counts
from terrine.transcription.settings import Annotation

DRAWS = 20_000
UNLIKELY = 1e-10


@pytest.mark.parametrize("source", [ReplayResponse(0), SecureResponse()])
@pytest.mark.parametrize(("epsilon", "categories"), [(0.5, 3), (2.0, 10), (1.0, 2)])
def test_answers_have_the_frequencies_of_equation_4(source, epsilon, categories):
    for truth in (0, categories - 1):
        told = source.respond(np.full(DRAWS, truth), epsilon, categories)
        expected = np.full(categories, 1 / (np.exp(epsilon) + categories - 1))
        expected[truth] *= np.exp(epsilon)
        found = np.bincount(told, minlength=categories)
        assert chisquare(found, expected / expected.sum() * DRAWS).pvalue > UNLIKELY


def test_a_truth_outside_the_categories_is_answered_uniformly():
    told = ReplayResponse(1).respond(np.full(DRAWS, -1), 3.0, 4)
    assert chisquare(np.bincount(told, minlength=4)).pvalue > UNLIKELY


def test_no_ratio_of_probabilities_passes_e_to_epsilon():
    """The bound holds even with the truth's probability rounded to 64 bits, and against the uniform answer."""
    for epsilon in (0.01, 1.0, 10.0, 40.0):
        for categories in (2, 3, 1000):
            keep = int(keep_probability(epsilon, categories) * (1 - 1e-12) * 2**64) / 2**64
            other = (1 - keep) / (categories - 1)
            assert keep / other <= np.exp(epsilon) * (1 + 1e-9)
            assert max(keep * categories, 1 / (other * categories)) <= np.exp(epsilon) * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "categories"), [(-1.0, 3), (41.0, 3), (1.0, 1), (float("nan"), 3)])
def test_impossible_responses_are_refused(epsilon, categories):
    with pytest.raises(SettingError, match="Randomised response"):
        keep_probability(epsilon, categories)


@pytest.mark.parametrize("truth", [np.array([3]), np.array([-2]), np.array([0.5]), np.zeros((2, 2), int)])
def test_labels_that_are_none_are_refused(truth):
    with pytest.raises(InputError):
        ReplayResponse(0).respond(truth, 1.0, 3)


def test_answers_stay_among_the_students_classes_and_tell_the_teachers_class_as_often_as_they_may():
    student = torch.tensor([[0.1, 0.5, 0.05, 0.35]]).expand(DRAWS, 4)  # top-2: classes 1 and 3
    inside = torch.nn.functional.one_hot(torch.full((1, DRAWS), 3), 4).double()
    outside = torch.nn.functional.one_hot(torch.full((1, DRAWS), 0), 4).double()
    settings = Annotation(epsilon=1.0, top_k=2)
    told = answers(inside, student, settings, ReplayResponse(0))[0].numpy()
    assert set(told) == {1, 3}
    keep = keep_probability(1.0, 2)
    found = np.array([(told == 3).sum(), (told == 1).sum()])
    assert chisquare(found, np.array([keep, 1 - keep]) * DRAWS).pvalue > UNLIKELY
    told = answers(outside, student, settings, ReplayResponse(1))[0].numpy()
    assert set(told) == {1, 3}
    assert chisquare(np.bincount(told, minlength=4)[[1, 3]]).pvalue > UNLIKELY


def test_answers_are_counted_by_class():
    told = torch.tensor([[0, 2], [0, 1]])
    assert counts(told, 3).tolist() == [[2, 0, 0], [0, 1, 1]]


def test_top_k_above_the_number_of_classes_is_refused():
    student = torch.full((2, 3), 1 / 3)
    with pytest.raises(SettingError, match="top_k is 4, but there are 3 classes"):
        answers(student[None], student, Annotation(epsilon=1.0, top_k=4), ReplayResponse(0))
