"""Randomised response with a prior: its price, brute-forced, and its best number of classes."""

import math

import numpy as np
import pytest

from benchmarks.dpsd_rivals import answer_probabilities


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_no_answer_is_more_than_e_to_the_epsilon_times_as_probable_under_another_label(epsilon):
    prior = np.random.default_rng(0).dirichlet(np.full(5, 0.5), size=200)
    answers = np.stack([answer_probabilities(np.full(200, label), prior, epsilon) for label in range(5)])
    assert answers.sum(axis=2) == pytest.approx(1.0)
    assert (answers[:, None] <= math.exp(epsilon) * answers[None] + 1e-12).all()
    # Of all numbers of classes, the one is used that makes a right answer most probable under the prior.
    right = (prior * answers[np.arange(5), :, np.arange(5)].T).sum(axis=1)
    ordered = np.cumsum(-np.sort(-prior, axis=1), axis=1)
    most = [math.exp(epsilon) / (math.exp(epsilon) + count) * ordered[:, count] for count in range(5)]
    assert right == pytest.approx(np.max(most, axis=0))


def test_an_even_prior_is_randomised_response():
    found = answer_probabilities(np.array([2]), np.full((1, 4), 0.25), 1.0)
    odds = math.exp(1.0)
    assert found[0] == pytest.approx(np.array([1, 1, odds, 1]) / (odds + 3))
