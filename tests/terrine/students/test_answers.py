"""The likelihoods of released answers against plain loops, and what forward correction is for."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from terrine.errors import InputError
from terrine.heads import predict
from terrine.students.answers import (
    corrected_loss,
    histogram_answers,
    histogram_loss,
    label_answers,
    smoothed_loss,
    transition_matrix,
)
from terrine.students.linear import fit

GENERATOR = np.random.default_rng(0)
SCORES = GENERATOR.normal(size=(7, 4)).astype(np.float32) * 3
LABELS = GENERATOR.integers(0, 4, 7)


def test_histogram_loss_is_the_gaussian_likelihood_of_each_count():
    histograms = GENERATOR.normal(size=(7, 4)) * 20 + 10
    answers = histogram_answers(histograms, teachers=50, sigma=8.0)
    loss = answers.fit_loss(torch.tensor(SCORES), torch.tensor(answers.targets))
    for query in range(7):
        p, expected = softmax(SCORES[query].astype(float)), 0.0
        for label in range(4):
            expected += (histograms[query, label] - 50 * p[label]) ** 2 / (2 * 8.0**2)
        assert float(loss[query]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_smoothed_loss_is_the_cross_entropy_with_a_spread_label(smoothing):
    loss = smoothed_loss(torch.tensor(SCORES), torch.tensor(np.eye(4, dtype=np.float32)[LABELS]), smoothing)
    for query in range(7):
        p, expected = softmax(SCORES[query].astype(float)), 0.0
        for label in range(4):
            share = smoothing / 4 + (1 - smoothing) * (label == LABELS[query])
            expected -= share * np.log(p[label])
        assert float(loss[query]) == pytest.approx(expected, rel=1e-5)


def test_corrected_loss_is_the_likelihood_of_the_label_after_the_transition():
    transition = transition_matrix(30.0, 60, 4)
    transition[0] = [0.4, 0.3, 0.2, 0.1]  # not symmetric: a transposed matrix would show
    loss = corrected_loss(torch.tensor(SCORES), torch.tensor(np.eye(4, dtype=np.float32)[LABELS]), transition)
    for query in range(7):
        p = softmax(SCORES[query].astype(float))
        released = sum(p[true] * transition[true, LABELS[query]] for true in range(4))
        assert float(loss[query]) == pytest.approx(-np.log(released), rel=1e-5)


def test_without_noise_the_corrected_loss_is_the_cross_entropy_and_has_finite_gradients():
    scores = torch.tensor(SCORES, requires_grad=True)
    one_hot = torch.tensor(np.eye(4, dtype=np.float32)[LABELS])
    loss = corrected_loss(scores, one_hot, np.eye(4))
    np.testing.assert_allclose(loss.detach(), smoothed_loss(scores, one_hot).detach(), rtol=1e-5)
    loss.sum().backward()
    assert torch.isfinite(scores.grad).all()


def test_forward_correction_recovers_probabilities_that_plain_labels_flatten():
    generator = np.random.default_rng(1)
    features = generator.normal(size=(4000, 5)).astype(np.float32)
    truth = (features @ generator.normal(size=(5, 3))).argmax(1)
    transition = transition_matrix(60.0, 60, 3)
    released = np.array([generator.choice(3, p=transition[label]) for label in truth])
    plain = predict(fit(features, label_answers(released, 3), 0.01, seed=0), features)
    corrected = predict(fit(features, label_answers(released, 3, transition=transition), 0.01, seed=0), features)
    rows = np.arange(len(truth))
    assert plain[rows, truth].mean() < 0.8  # transition's diagonal
    assert corrected[rows, truth].mean() > 0.9


def test_answers_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="from 0 to 2"):
        label_answers(np.array([0, 3]), 3)
    with pytest.raises(InputError, match=r"\(3, 3\)"):
        label_answers(LABELS, 4, transition=np.eye(3))
    with pytest.raises(InputError, match="finite"):
        histogram_answers(np.full((2, 3), np.nan), 10, 1.0)


def test_histogram_loss_scales_with_its_weight():
    scores, shares = torch.tensor(SCORES), torch.zeros(7, 4)
    np.testing.assert_allclose(histogram_loss(scores, shares, 6.0), 3 * histogram_loss(scores, shares, 2.0), rtol=1e-6)
