"""Released answers and their likelihoods: histograms, labels, ordered classes, several findings."""

import math

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

from terrine.aggregation.gnmax import GaussianHistogram, GNMax
from terrine.errors import InputError
from terrine.heads import FindingsHead, OrderedHead, head_from_arrays, predict
from terrine.students.answers import (
    corrected_loss,
    histogram_answers,
    histogram_loss,
    label_answers,
    label_loss,
    ordered_answers,
    released_answers,
    transition_matrix,
)
from terrine.students.linear import LinearStudent, fit

GENERATOR = np.random.default_rng(0)
SCORES = GENERATOR.normal(size=(7, 4)).astype(np.float32) * 3
LABELS = GENERATOR.integers(0, 4, 7)


def test_histogram_loss_is_the_gaussian_likelihood_of_each_count():
    histograms = GENERATOR.normal(size=(7, 4)) * 20 + 10
    answers = histogram_answers(histograms, teachers=50, sigma=8.0)
    loss = answers.loss(torch.tensor(SCORES), torch.tensor(answers.targets))
    for query in range(7):
        p, expected = softmax(SCORES[query].astype(float)), 0.0
        for label in range(4):
            expected += (histograms[query, label] - 50 * p[label]) ** 2 / (2 * 8.0**2)
        assert float(loss[query]) == pytest.approx(expected, rel=1e-4)


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
    np.testing.assert_allclose(loss.detach(), label_loss(scores, one_hot).detach(), rtol=1e-5)
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


ANSWERED = np.array([1, 1, 0, 0, 0, 0, 0, 1, 1], dtype=bool)  # of three images; the second has no answer
FINDING_LABELS = np.array([1, 0, -1, -1, -1, -1, -1, 1, 1])
FINDING_SCORES = torch.tensor([[0.3, -2.0, 5.0], [1.5, 0.0, -4.0]])


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_noisy_counts_are_shares_of_yes_and_what_was_not_answered_says_nothing() -> None:
    histograms = np.where(ANSWERED[:, None], np.random.default_rng(0).normal(20, 9, (9, 2)), np.nan)
    rows, answers = released_answers(
        GaussianHistogram(sigma=8.0, findings=3),
        LinearStudent(),
        answered=ANSWERED,
        labels=FINDING_LABELS,
        histograms=histograms,
        teachers=40,
        classes=3,
    )
    assert rows.tolist() == [0, 2]
    for place, image in enumerate(rows):
        expected = 0.0
        for finding in range(3):
            no, yes = histograms[3 * image + finding]
            if ANSWERED[3 * image + finding]:
                variance = 2 * 8.0**2 / (2 * 40) ** 2
                share = (yes - no + 40) / 80
                expected += (sigmoid(float(FINDING_SCORES[place, finding])) - share) ** 2 / (2 * variance)
        loss = answers.loss(FINDING_SCORES, torch.from_numpy(answers.targets))[place]
        assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("settings", [{}, {"forward_correction": True}])
def test_labels_are_coins(settings: dict[str, object]) -> None:
    mechanism = GNMax(sigma=30.0, findings=3)
    rows, answers = released_answers(
        mechanism,
        LinearStudent.model_validate(settings),
        answered=ANSWERED,
        labels=FINDING_LABELS,
        histograms=None,
        teachers=40,
        classes=3,
    )
    assert rows.tolist() == [0, 2]
    wrong = transition_matrix(30.0, 40, 2)[0, 1] if "forward_correction" in settings else 0.0
    for place, image in enumerate(rows):
        expected = 0.0
        for finding in range(3):
            number = 3 * image + finding
            if not ANSWERED[number]:
                continue
            yes = sigmoid(float(FINDING_SCORES[place, finding])) * (1 - 2 * wrong) + wrong
            label = FINDING_LABELS[number]
            expected -= label * math.log(yes) + (1 - label) * math.log(1 - yes)
        loss = answers.loss(FINDING_SCORES, torch.from_numpy(answers.targets))[place]
        assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_a_student_learns_each_finding_and_its_head_says_that_it_is_one_of_findings() -> None:
    generator = np.random.default_rng(1)
    features = generator.normal(size=(600, 8)).astype(np.float32)
    truth = features[:, :3] > (0.0, 0.5, -0.5)
    labels = np.where(generator.random((600, 3)) < 0.1, ~truth, truth).astype(np.int64).ravel()
    _, answers = released_answers(
        GNMax(sigma=1.0, findings=3),
        LinearStudent(),
        answered=np.ones(1800, dtype=bool),
        labels=labels,
        histograms=None,
        teachers=40,
        classes=3,
    )
    head = fit(features, answers, seed=0)
    assert isinstance(head, FindingsHead)
    again = head_from_arrays(head.to_arrays())
    assert isinstance(again, FindingsHead)
    said = predict(again, features)
    assert (((said > 0.5) == truth).mean(axis=0) > 0.93).all()
    np.testing.assert_allclose(said, 1 / (1 + np.exp(-(features @ head.weight.T + head.bias))), atol=1e-5)


TEACHERS, SIGMA = 50, 9.0


def test_answers_of_boundaries_are_what_lies_above_with_the_variance_that_weighs_them() -> None:
    generator = np.random.default_rng(0)
    votes = np.array([5, 15, 10, 12, 8])
    noisy = votes + generator.normal(0, SIGMA, (40_000, 5))
    answers = ordered_answers(noisy, TEACHERS, SIGMA)
    above = [votes[k:].sum() / TEACHERS for k in range(1, 5)]
    assert answers.targets.mean(axis=0) == pytest.approx(above, abs=3e-3)
    scores = torch.zeros(1, 4)
    for boundary, variance in enumerate(answers.targets.var(axis=0)):
        off = torch.full((1, 4), 0.5)
        off[0, boundary] = 0.7
        assert float(answers.loss(scores, off)) == pytest.approx(0.2**2 / (2 * variance), rel=0.05)


def test_a_head_of_boundaries_tells_classes_and_is_kept_and_exported_as_it_is() -> None:
    generator = np.random.default_rng(1)
    head = OrderedHead(generator.normal(size=(3, 6)).astype(np.float32), generator.normal(size=3).astype(np.float32))
    features = generator.normal(size=(20, 6)).astype(np.float32)
    said = predict(head, features)
    for row, one in zip(said, features @ head.weight.T + head.bias, strict=True):
        falling = [1.0, *sorted((1 / (1 + np.exp(-one))).tolist(), reverse=True), 0.0]
        assert row == pytest.approx(-np.diff(falling), abs=1e-5)
    again = head_from_arrays(head.to_arrays())
    assert isinstance(again, OrderedHead)
    assert (again.classes, again.features) == (4, 6)
    np.testing.assert_array_equal(predict(again, features), said)
    whole = nn.Sequential(head.module(), nn.Softmax(dim=1))
    program = torch.export.export(whole, (torch.from_numpy(features),))
    assert program.module()(torch.from_numpy(features)).detach().numpy() == pytest.approx(said, abs=1e-6)


def test_with_little_noise_the_student_of_boundaries_learns_what_votes_say() -> None:
    generator = np.random.default_rng(2)
    features = generator.normal(size=(600, 5)).astype(np.float32)
    place = features @ np.array([2.0, -1, 0.5, 0, 0])
    likely = 1 / (1 + np.exp(-(place[:, None] - np.array([-2.0, 0, 1.5]))))
    shares = -np.diff(np.hstack([np.ones((600, 1)), likely, np.zeros((600, 1))]), axis=1)
    counts = 400 * shares + generator.normal(0, 4, (600, 4))
    about = {"answered": np.ones(500, bool), "labels": counts[:500].argmax(1), "histograms": counts[:500]}
    mechanism = GaussianHistogram(sigma=4.0)
    rows, answers = released_answers(mechanism, LinearStudent(), **about, teachers=400, classes=4, ordered=True)
    head = fit(features[rows], answers, 0.01, seed=0)
    assert isinstance(head, OrderedHead)
    wrong = np.abs(predict(head, features[500:]) - shares[500:]).mean()
    plain = fit(features[rows], histogram_answers(counts[:500], 400, 4.0), 0.01, seed=0)
    assert wrong < 0.03
    assert wrong < np.abs(predict(plain, features[500:]) - shares[500:]).mean()
