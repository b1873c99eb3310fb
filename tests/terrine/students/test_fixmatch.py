"""FixMatch's loss against a plain loop over images."""

import math

import pytest
import torch

from terrine.students.fixmatch import fixmatch_loss


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
