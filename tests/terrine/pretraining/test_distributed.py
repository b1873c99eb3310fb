"""SimCLR over several processes."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.models.statistics import Call
from terrine.npy import MappedRows, Segment
from terrine.pretraining.distributed import GlobalBatchNorm, _over_all_processes, gather_rows, world
from terrine.pretraining.launch import pretrain_on_devices
from tests.terrine.pretraining.test_simclr import SETTINGS, pretrain, some_images, state, tiny_backbone


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


def without_dropout() -> Backbone:
    """A process draws its own dropout, so only without it is the result that of one process."""
    backbone = tiny_backbone()
    backbone.network[4].p = 0.0
    return backbone


def test_two_processes_give_the_losses_and_weights_of_one_and_one_can_go_on_from_their_checkpoint(tmp_path):
    alone, shared, again = without_dropout(), without_dropout(), without_dropout()
    expected = pretrain(alone, some_images(), SETTINGS, seed=0, device="cpu")
    reports = []
    np.save(tmp_path / "images.npy", some_images())
    history = pretrain_on_devices(
        shared,
        MappedRows([Segment(tmp_path / "images.npy", 0, len(some_images()))]),
        SETTINGS,
        seed=0,
        devices=["cpu", "cpu"],
        checkpoint=tmp_path / "c",
        progress=lambda *report: reports.append(report),
    )
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert [row["loss"] for row in history] == pytest.approx([row["loss"] for row in expected], rel=1e-4)
    for name, value in state(alone).items():
        torch.testing.assert_close(state(shared)[name], value, atol=1e-4, rtol=1e-3)
    assert reports[-1][0] == 1.0
    assert pretrain(again, some_images(), SETTINGS, seed=0, device="cpu", checkpoint=tmp_path / "c") == history


def test_no_device_and_batches_that_cannot_be_shared_are_refused(tmp_path):
    with pytest.raises(SettingError, match="no device"):
        pretrain_on_devices(tiny_backbone(), some_images(), SETTINGS, seed=0, devices=[], checkpoint=tmp_path / "c")
