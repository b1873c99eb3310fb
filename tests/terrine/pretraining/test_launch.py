"""Several devices share a run as one would do it, and leave the run's ordinary checkpoint."""

import numpy as np
import pytest
import torch

from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.npy import MappedRows, Segment
from terrine.pretraining.launch import pretrain_on_devices
from tests.terrine.pretraining.test_simclr import SETTINGS, pretrain, some_images, state, tiny_backbone


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
