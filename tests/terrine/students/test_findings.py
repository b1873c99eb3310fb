"""Answers about several findings as a student learns from them, against loops over images and findings."""

import math

import numpy as np
import pytest
import torch

from terrine.aggregation.gnmax import GaussianHistogram, GNMax
from terrine.heads import FindingsHead, head_from_arrays, predict
from terrine.students.answers import released_answers, transition_matrix
from terrine.students.linear import LinearStudent, fit

ANSWERED = np.array([1, 1, 0, 0, 0, 0, 0, 1, 1], dtype=bool)  # of three images; the second has no answer
LABELS = np.array([1, 0, -1, -1, -1, -1, -1, 1, 1])
SCORES = torch.tensor([[0.3, -2.0, 5.0], [1.5, 0.0, -4.0]])


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_noisy_counts_are_shares_of_yes_and_what_was_not_answered_says_nothing() -> None:
    histograms = np.where(ANSWERED[:, None], np.random.default_rng(0).normal(20, 9, (9, 2)), np.nan)
    rows, answers = released_answers(
        GaussianHistogram(sigma=8.0, findings=3),
        LinearStudent(),
        answered=ANSWERED,
        labels=LABELS,
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
                expected += (sigmoid(float(SCORES[place, finding])) - share) ** 2 / (2 * variance)
        loss = answers.fit_loss(SCORES, torch.from_numpy(answers.targets))[place]
        assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.2}, {"forward_correction": True}])
def test_labels_are_coins(settings: dict[str, object]) -> None:
    mechanism = GNMax(sigma=30.0, findings=3)
    rows, answers = released_answers(
        mechanism,
        LinearStudent.model_validate(settings),
        answered=ANSWERED,
        labels=LABELS,
        histograms=None,
        teachers=40,
        classes=3,
    )
    assert rows.tolist() == [0, 2]
    wrong = transition_matrix(30.0, 40, 2)[0, 1] if "forward_correction" in settings else 0.0
    smooth = 0.2 if "label_smoothing" in settings else 0.0
    for place, image in enumerate(rows):
        expected = 0.0
        for finding in range(3):
            number = 3 * image + finding
            if not ANSWERED[number]:
                continue
            yes = sigmoid(float(SCORES[place, finding])) * (1 - 2 * wrong) + wrong
            label = LABELS[number] * (1 - smooth) + smooth / 2
            expected -= label * math.log(yes) + (1 - label) * math.log(1 - yes)
        loss = answers.fit_loss(SCORES, torch.from_numpy(answers.targets))[place]
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
