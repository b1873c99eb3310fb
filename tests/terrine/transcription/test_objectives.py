"""The generator's losses, against plain loops over equation 8 and over what its text says."""

import math

import pytest
import torch

from terrine.transcription.generator import activation_loss, entropy_loss, generator_loss
from terrine.transcription.loop import fit_loss
from terrine.transcription.settings import TranscriptionGenerator


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, 5, generator=generator, dtype=torch.float64) * 2
    features = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    annotation = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    return scores, features, annotation


def softmax(row):
    total = sum(math.exp(value) for value in row)
    return [math.exp(value) / total for value in row]


def test_every_term_is_that_of_equation_8(batch):
    scores, features, _ = batch
    one_hot = entropy = activation = 0.0
    for sample in range(7):
        p = softmax(scores[sample].tolist())
        one_hot += -math.log(max(p))
        entropy += sum(value * math.log(value) for value in p)
        activation += math.sqrt(sum(value**2 for value in features[sample].tolist()))
    only = TranscriptionGenerator(entropy=0, activation=0)
    assert float(generator_loss(scores, features, only)) * 7 == pytest.approx(one_hot, abs=1e-6)
    assert float(entropy_loss(scores)) * 7 == pytest.approx(entropy, abs=1e-6)
    assert float(activation_loss(features)) * 7 == pytest.approx(activation, abs=1e-6)


def test_the_intended_form_balances_the_batch_and_rewards_activation(batch):
    scores, features, _ = batch
    mean = [sum(softmax(row)[j] for row in scores.tolist()) / 7 for j in range(5)]
    expected = sum(value * math.log(value) for value in mean)
    assert float(entropy_loss(scores, "intended")) == pytest.approx(expected, abs=1e-6)
    assert float(activation_loss(features, "intended")) == pytest.approx(-float(activation_loss(features)))
    even, uneven = torch.eye(5) * 20, torch.eye(5)[[0, 0, 0, 0, 1]] * 20
    assert entropy_loss(even, "intended") < entropy_loss(uneven, "intended")


def test_terms_are_weighted_and_switched_off(batch):
    scores, features, _ = batch

    def loss(one_hot, entropy, activation):
        weights = TranscriptionGenerator(one_hot=one_hot, entropy=entropy, activation=activation)
        return generator_loss(scores, features, weights)

    torch.testing.assert_close(loss(2, 3, 4), loss(2, 0, 0) + loss(0, 3, 0) + loss(0, 0, 4))
    assert float(loss(0, 0, 0)) == 0


def test_the_students_losses_are_those_of_plain_loops(batch):
    scores, _, annotation = batch
    crossed = squared = 0.0
    for sample in range(7):
        p, y = softmax(scores[sample].tolist()), annotation[sample].tolist()
        crossed -= sum(y[j] * math.log(p[j]) for j in range(5))
        squared += sum((p[j] - y[j]) ** 2 for j in range(5)) / 2
    assert float(fit_loss(scores, annotation, "cross_entropy")) * 7 == pytest.approx(crossed, abs=1e-6)
    assert float(fit_loss(scores, annotation, "squared")) * 7 == pytest.approx(squared, abs=1e-6)
