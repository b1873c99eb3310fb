"""FreeMatch's thresholds and losses against plain loops."""

import math

import pytest
import torch

from terrine.students.freematch import Thresholds, freematch_loss

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
