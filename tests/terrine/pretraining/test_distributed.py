"""What looks at the whole batch sees all processes' parts of it. (Whole runs are compared in test_launch.)"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from terrine.models.statistics import Call
from terrine.pretraining.distributed import GlobalBatchNorm, _over_all_processes, gather_rows, world


def test_one_process_needs_no_process_group():
    assert world() == (0, 1)
    rows = torch.rand(3, 2)
    assert gather_rows(rows) is rows
    images = torch.rand(4, 2, 3, 3)
    with GlobalBatchNorm():
        result = nn.BatchNorm2d(2)(images)
    assert torch.equal(result, nn.BatchNorm2d(2)(images))


def test_global_batch_norm_over_a_group_of_one_equals_the_ordinary_one_with_gradients_and_buffers():
    images = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    ordinary = nn.BatchNorm2d(3)
    nn.init.uniform_(ordinary.weight)
    nn.init.normal_(ordinary.bias)
    mean, variance = torch.zeros(3), torch.ones(3)
    first, second = images.clone().requires_grad_(), images.clone().requires_grad_()
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder)}/meeting", rank=0, world_size=1)
        try:
            call = Call(first, mean, variance, ordinary.weight, ordinary.bias, True, 0.1, ordinary.eps)
            result = _over_all_processes(call)
            result.square().sum().backward()
        finally:
            dist.destroy_process_group()
    gradient = ordinary.weight.grad.clone()
    ordinary.weight.grad = None
    expected = ordinary(second)
    expected.square().sum().backward()
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(first.grad, second.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradient, ordinary.weight.grad)
    torch.testing.assert_close(mean, ordinary.running_mean)
    torch.testing.assert_close(variance, ordinary.running_var)
