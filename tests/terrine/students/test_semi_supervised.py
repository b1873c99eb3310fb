"""Losses of unlabelled images equal plain loops: FixMatch, FreeMatch, VAT."""

import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from terrine.students.fixmatch import FixMatchStudent, fixmatch_loss
from terrine.students.freematch import FreeMatchStudent, Thresholds, freematch_loss
from terrine.students.vat import adversarial_direction, divergence, spread, vat_loss


def plain_loss(weak, strong, threshold):
    total = 0.0
    for w, s in zip(weak.tolist(), strong.tolist(), strict=True):
        q = [math.exp(value) / sum(math.exp(other) for other in w) for value in w]
        p = [math.exp(value) / sum(math.exp(other) for other in s) for value in s]
        label = max(range(len(q)), key=q.__getitem__)
        if q[label] >= threshold:
            total -= math.log(p[label])
    return total / len(weak)


@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.95, 1.0])
def test_the_loss_is_equation_4_written_as_a_loop(threshold):
    generator = torch.Generator().manual_seed(0)
    weak, strong = (3 * torch.randn(40, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    passed = torch.softmax(weak, 1).amax(1) >= threshold
    if threshold in (0.6, 0.95):
        assert 0 < passed.sum() < 40
    assert float(fixmatch_loss(weak, strong, threshold)) == pytest.approx(plain_loss(weak, strong, threshold))


def test_no_gradient_flows_into_the_weak_views_and_none_from_images_that_do_not_pass():
    weak = torch.tensor([[9.0, 0.0], [0.1, 0.0]], requires_grad=True)
    strong = torch.tensor([[0.5, 0.0], [0.5, 0.0]], requires_grad=True)
    fixmatch_loss(weak, strong, 0.95).backward()
    assert weak.grad is None
    assert strong.grad[0].abs().sum() > 0
    assert not strong.grad[1].any()


CLASSES, DECAY = 4, 0.9


def drawn(seed, count=30):
    generator = torch.Generator().manual_seed(seed)
    weak, strong = (2 * torch.randn(count, CLASSES, generator=generator, dtype=torch.float64) for _ in range(2))
    return torch.softmax(weak, 1), strong


class Plain:
    """The running quantities and the losses, number by number."""

    def __init__(self):
        self.level, self.p, self.h = 1 / CLASSES, [1 / CLASSES] * CLASSES, [1 / CLASSES] * CLASSES

    def step(self, probabilities, strong_scores):
        q = probabilities.tolist()
        count = len(q)
        labels = [max(range(CLASSES), key=row.__getitem__) for row in q]
        self.level = DECAY * self.level + (1 - DECAY) * sum(max(row) for row in q) / count
        for c in range(CLASSES):
            self.p[c] = DECAY * self.p[c] + (1 - DECAY) * sum(row[c] for row in q) / count
            self.h[c] = DECAY * self.h[c] + (1 - DECAY) * sum(label == c for label in labels) / count
        thresholds = [self.p[c] / max(self.p) * self.level for c in range(CLASSES)]
        consistency, mean, histogram, passed = 0.0, [0.0] * CLASSES, [0.0] * CLASSES, 0
        for row, label, scores in zip(q, labels, strong_scores.tolist(), strict=True):
            if max(row) < thresholds[label]:
                continue
            total = sum(math.exp(value) for value in scores)
            own = [math.exp(value) / total for value in scores]
            consistency -= math.log(own[label])
            passed += 1
            for c in range(CLASSES):
                mean[c] += own[c]
            histogram[max(range(CLASSES), key=own.__getitem__)] += 1
        mean, histogram = [v / passed for v in mean], [v / passed for v in histogram]
        target = [self.p[c] / self.h[c] if self.h[c] else 0 for c in range(CLASSES)]
        actual = [mean[c] / histogram[c] if histogram[c] else 0 for c in range(CLASSES)]
        fairness = sum(target[c] / sum(target) * math.log(actual[c] / sum(actual) + 1e-12) for c in range(CLASSES))
        return thresholds, passed, consistency / count, fairness


def test_thresholds_and_losses_are_the_papers_equations_written_as_loops():
    plain, state = Plain(), Thresholds.initial(CLASSES)
    some_failed = False
    for seed in range(6):
        probabilities, strong = drawn(seed)
        state = Thresholds(*(part.double() for part in (state.level, state.probability, state.histogram)))
        state = state.after(probabilities, DECAY)
        consistency, fairness = freematch_loss(probabilities, strong, state)
        thresholds, passed, expected_consistency, expected_fairness = plain.step(probabilities, strong)
        some_failed |= passed < 30
        assert state.per_class().tolist() == pytest.approx(thresholds, rel=1e-6)
        assert float(consistency) == pytest.approx(expected_consistency, rel=1e-6)
        assert float(fairness) == pytest.approx(expected_fairness, rel=1e-6)
    assert some_failed


def test_the_threshold_starts_at_chance_and_follows_the_confidence():
    state = Thresholds.initial(CLASSES)
    assert state.per_class().tolist() == pytest.approx([0.25] * CLASSES)
    certain = torch.eye(CLASSES)[torch.arange(40) % CLASSES] * 0.96 + 0.01
    for _ in range(200):
        state = state.after(certain, DECAY)
    assert state.per_class().tolist() == pytest.approx([0.97] * CLASSES, abs=1e-3)


def test_a_class_that_is_rarely_predicted_has_a_lower_threshold():
    state = Thresholds.initial(2)
    mostly_first = torch.tensor([[0.9, 0.1]] * 9 + [[0.2, 0.8]])
    for _ in range(100):
        state = state.after(mostly_first, DECAY)
    first, second = state.per_class().tolist()
    assert second < 0.3 * first


def test_where_no_image_passes_both_losses_are_zero():
    state = Thresholds(torch.tensor(0.99), torch.full((2,), 0.5), torch.full((2,), 0.5))
    strong = torch.zeros(3, 2, requires_grad=True)
    consistency, fairness = freematch_loss(torch.full((3, 2), 0.5), strong, state)
    assert consistency.item() == fairness.item() == 0


WEIGHT = np.random.default_rng(0).normal(size=(3, 5))
INPUTS = np.random.default_rng(1).normal(size=(6, 5))
START = np.random.default_rng(2).normal(size=(6, 5))


def scores(inputs):
    return torch.tanh(inputs) @ torch.tensor(WEIGHT).T


def plain_scores(x):
    return WEIGHT @ np.tanh(x)


def plain_divergence(first, second):
    total = 0.0
    for label in range(3):
        total += softmax(first)[label] * (log_softmax(first)[label] - log_softmax(second)[label])
    return total


def plain_direction(x, start, probe, iterations):
    """Power iteration of one input, its gradient by central differences."""
    d = start / np.linalg.norm(start)
    for _ in range(iterations):
        gradient = np.zeros(5)
        for axis in range(5):
            step = np.zeros(5)
            step[axis] = 1e-5
            up, down = (
                plain_divergence(plain_scores(x), plain_scores(x + probe * (d + sign * step))) for sign in (1, -1)
            )
            gradient[axis] = (up - down) / 2e-5
        d = gradient / np.linalg.norm(gradient)
    return d


@pytest.mark.parametrize("iterations", [1, 2])
def test_the_loss_is_algorithm_1_written_as_a_loop(iterations):
    epsilon, probe = 0.7, 0.1
    loss = vat_loss(
        scores, torch.tensor(INPUTS), torch.tensor(START), epsilon=epsilon, probe=probe, iterations=iterations
    )
    expected = 0.0
    for x, start in zip(INPUTS, START, strict=True):
        d = plain_direction(x, start, probe, iterations)
        expected += plain_divergence(plain_scores(x), plain_scores(x + epsilon * d))
    assert float(loss) == pytest.approx(expected / len(INPUTS), rel=1e-4)


def test_power_iteration_finds_the_direction_of_largest_curvature():
    inputs = torch.tensor(INPUTS)
    clean = scores(inputs)
    direction = adversarial_direction(scores, inputs, torch.tensor(START), probe=1e-3, iterations=60, clean=clean)
    for x, d in zip(INPUTS, direction.numpy(), strict=True):
        p = softmax(plain_scores(x))
        jacobian = WEIGHT * (1 - np.tanh(x) ** 2)
        hessian = jacobian.T @ (np.diag(p) - np.outer(p, p)) @ jacobian
        vectors = np.linalg.eigh(hessian)[1]
        assert abs(vectors[:, -1] @ d) > 0.99


def test_the_direction_changes_answers_more_than_a_random_one():
    inputs = torch.tensor(INPUTS)
    adversarial = vat_loss(scores, inputs, torch.tensor(START), epsilon=0.5, probe=0.01, iterations=1)
    unit = torch.tensor(START / np.linalg.norm(START, axis=1, keepdims=True))
    assert float(adversarial) > 1.5 * float(divergence(scores(inputs), scores(inputs + 0.5 * unit)).mean())


def test_no_weight_gets_a_gradient_from_the_search_and_none_flows_into_the_clean_answers():
    weight = torch.tensor(WEIGHT, requires_grad=True)

    def own(inputs):
        return inputs @ weight.T

    inputs = torch.tensor(INPUTS)
    direction = adversarial_direction(
        own, inputs, torch.tensor(START), probe=0.1, iterations=2, clean=own(inputs).detach()
    )
    assert weight.grad is None
    vat_loss(own, inputs, torch.tensor(START), epsilon=0.5, probe=0.1, iterations=2).backward()
    given = weight.grad.clone()
    weight.grad = None
    divergence(own(inputs).detach(), own(inputs + 0.5 * direction)).mean().backward()
    torch.testing.assert_close(given, weight.grad)


def test_images_are_perturbed_as_whole_vectors():
    images = torch.tensor(INPUTS[:4, :4].reshape(4, 1, 2, 2))
    direction = adversarial_direction(
        lambda batch: batch.flatten(1) @ torch.tensor(WEIGHT[:, :4]).T,
        images,
        torch.ones(4, 1, 2, 2, dtype=torch.float64),
        probe=0.1,
        iterations=1,
        clean=images.flatten(1) @ torch.tensor(WEIGHT[:, :4]).T,
    )
    assert direction.shape == images.shape
    np.testing.assert_allclose(direction.flatten(1).norm(dim=1), 1)
    expected = np.sqrt(np.mean([((x - INPUTS.mean(0)) ** 2).sum() for x in INPUTS]))
    assert spread(torch.tensor(INPUTS)) == pytest.approx(expected)


def test_usb_replaces_only_settings_that_are_not_given():
    student = FreeMatchStudent(defaults="usb", steps=10)
    assert (student.decay, student.fairness, student.train_batch, student.steps) == (0.999, 0.001, 8, 10)
    assert FreeMatchStudent.model_validate(student.model_dump()) == student
    assert FixMatchStudent(defaults="usb").unlabelled_ratio == 1
    assert FixMatchStudent().unlabelled_ratio == 4
