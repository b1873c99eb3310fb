"""DP-FedAvg of linear heads."""

import math

import numpy as np
import pytest

from benchmarks.dp_fedavg import FedAvgSettings, train
from terrine.heads import predict
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from terrine.privacy.noise import ReplayNoise


class Recorded:
    """Noise of nought that remembers what was asked for."""

    kind = "replay"

    def __init__(self):
        self.calls = []

    def gaussian(self, shape, sigma):
        self.calls.append((shape, sigma))
        return np.zeros(shape)


def some_records(records=120, features=6, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=records)
    centres = generator.normal(size=(classes, features)) * 2
    return (centres[labels] + generator.normal(size=(records, features))).astype(np.float32), labels


def slow(features, labels, assignment, parties, classes, settings, sigma):
    """The same, one record at a time, without noise."""
    scale = settings.scale or 1 / math.sqrt(features.shape[1])
    weights = np.zeros((classes, features.shape[1] + 1))
    for _ in range(settings.rounds):
        total = np.zeros_like(weights)
        for party in range(parties):
            rows = [row for row in range(len(labels)) if assignment[row] == party]
            if not rows:
                continue
            own = weights.copy()
            for _ in range(settings.local_steps):
                gradient = np.zeros_like(own)
                for row in rows:
                    x = np.append(features[row].astype(np.float64) * scale, 1.0)
                    scores = own @ x
                    p = np.exp(scores - scores.max())
                    p /= p.sum()
                    p[labels[row]] -= 1
                    gradient += np.outer(p, x) / len(rows)
                own -= settings.learning_rate * gradient
            update = own - weights
            length = math.sqrt(sum(value**2 for value in update.ravel()))
            total += update * min(1.0, settings.clip / length)
        weights += total / parties
    return weights[:, :-1] * scale, weights[:, -1]


@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_training_equals_a_plain_loop(clip):
    features, labels = some_records()
    assignment = np.random.default_rng(1).integers(7, size=120)
    assignment[assignment == 4] = 5  # a party without records
    settings = FedAvgSettings(rounds=4, local_steps=3, learning_rate=0.7, clip=clip)
    noise = Recorded()
    federated = train(features, labels, assignment, 7, 3, settings, epsilon=2, delta=1e-5, noise=noise)
    weight, bias = slow(features, labels, assignment, 7, 3, settings, None)
    np.testing.assert_allclose(federated.head.weight, weight, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(federated.head.bias, bias, rtol=2e-4, atol=1e-6)
    assert noise.calls == [((21,), federated.noise_multiplier * clip)] * 4


@pytest.mark.parametrize("clip", [0.01, 3.0])
def test_it_costs_exactly_the_budget_whatever_the_clipping(clip):
    features, labels = some_records()
    settings = FedAvgSettings(rounds=9, clip=clip)
    federated = train(features, labels, np.arange(120) % 5, 5, 3, settings, epsilon=3, delta=1e-6, noise=ReplayNoise(1))
    assert mu_squared(federated.event) == pytest.approx(4 * 9 / federated.noise_multiplier**2)
    assert epsilon_of(math.sqrt(mu_squared(federated.event)), 1e-6) == pytest.approx(3, rel=1e-6)


def test_one_record_moves_the_sum_by_no_more_than_was_accounted_for():
    features, labels = some_records()
    assignment = np.arange(120) % 4
    settings = FedAvgSettings(rounds=1, local_steps=40, learning_rate=5.0, clip=0.3)

    def released(labels):
        head = train(features, labels, assignment, 4, 3, settings, epsilon=1, delta=1e-5, noise=Recorded()).head
        scale = 1 / math.sqrt(features.shape[1])
        return np.concatenate([head.weight / scale, head.bias[:, None]], axis=1) * 4

    largest = 0.0
    for row in range(0, 120, 7):
        other = labels.copy()
        other[row] = (other[row] + 1) % 3
        largest = max(largest, float(np.linalg.norm(released(labels) - released(other))))
    assert 0 < largest <= 2 * 0.3 * (1 + 1e-5)


def test_a_large_budget_learns_and_a_small_one_does_not():
    features, labels = some_records(records=600)
    assignment = np.arange(600) % 30

    def accuracy(epsilon):
        head = train(
            features,
            labels,
            assignment,
            30,
            3,
            FedAvgSettings(rounds=10),
            epsilon=epsilon,
            delta=1e-5,
            noise=ReplayNoise(0),
        ).head
        return (predict(head, features).argmax(1) == labels).mean()

    assert accuracy(50) > 0.85
    assert accuracy(0.01) < accuracy(50) - 0.1
