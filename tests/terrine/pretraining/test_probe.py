"""The probe measures what it says, on public labels alone."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from torch import nn

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError
from terrine.models.backbone import Backbone
from terrine.pretraining.probe import probe


def pixels_as_features() -> Backbone:
    return Backbone(nn.Flatten(), 64, {"kind": "pixels", "channels": 1, "size": 8, "options": {}})


def two_programs(count: int, difference: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, count)
    images = generator.integers(0, 200, (count, 1, 8, 8)) + difference * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def test_programs_that_differ_are_told_apart_and_equal_ones_are_not():
    assert probe(pixels_as_features(), *two_programs(600, 50), seed=0) > 0.97
    assert 0.35 < probe(pixels_as_features(), *two_programs(600, 0), seed=0) < 0.65


def test_the_figure_equals_a_ridge_classifier_written_out():
    images, labels = two_programs(200, 15)
    order = np.random.default_rng(3).permutation(200)
    images, labels = images[order], labels[order]
    result = probe(pixels_as_features(), images, labels, seed=7, penalty=0.1)
    order = numpy_generator(7, "probe").permutation(200)
    features = images[order].reshape(200, 64) / 255.0
    classes = labels[order]
    mean, deviation = features[:100].mean(0), features[:100].std(0)
    standardised = (features - mean) / deviation
    ridge = Ridge(alpha=0.1 * 100).fit(standardised[:100], np.eye(2)[classes[:100]])
    expected = np.mean(ridge.predict(standardised[100:]).argmax(1) == classes[100:])
    assert result == pytest.approx(expected)
    assert 0.6 < expected < 1


def test_equal_arguments_give_equal_figures():
    images, labels = two_programs(300, 10)
    figures = {probe(pixels_as_features(), images, labels, seed=1) for _ in range(3)}
    assert len(figures) == 1


@pytest.mark.parametrize("labels", [np.zeros(20, int), np.zeros(19, int), np.zeros((20, 1), int), -np.ones(20, int)])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(InputError, match="probe: 20 images"):
        probe(pixels_as_features(), np.zeros((20, 1, 8, 8), np.uint8), labels, seed=0)
