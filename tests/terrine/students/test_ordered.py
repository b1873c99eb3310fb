"""Answers about classes in an order as a student learns from them, against loops and simulated noise."""

import numpy as np
import pytest
import torch
from torch import nn

from terrine.aggregation.gnmax import GaussianHistogram
from terrine.heads import OrderedHead, head_from_arrays, predict
from terrine.students.answers import histogram_answers, ordered_answers, released_answers
from terrine.students.linear import LinearStudent, fit

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
        assert float(answers.fit_loss(scores, off)) == pytest.approx(0.2**2 / (2 * variance), rel=0.05)


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
