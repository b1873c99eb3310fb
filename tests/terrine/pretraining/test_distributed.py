"""Two processes that share a batch compute what one process computes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from terrine.pretraining.distributed import GlobalBatchNorm, gather_rows, world

PROCESS = """
import datetime, json, sys
from dataclasses import replace
from pathlib import Path
import torch
import torch.distributed as dist
torch.set_num_threads(1)
folder, tests, rank = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sys.path.insert(0, tests)
from test_simclr import SETTINGS, pretrain, simclr, some_images, tiny_backbone
simclr._REPORT_SECONDS = 0
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60)
)
backbone = tiny_backbone()
backbone.network[4].p = 0.0
losses = []
record = lambda fraction, text: losses.append(float(text.split()[-1]))
pretrain(backbone, some_images(), SETTINGS, seed=0, device="cpu", progress=record)
result = {name: value.tolist() for name, value in backbone.network.state_dict().items()}
(folder / f"{rank}.json").write_text(json.dumps({"losses": losses, "state": result}))
dist.destroy_process_group()
"""


def test_two_processes_give_the_losses_and_weights_of_one(tmp_path, monkeypatch):
    from test_simclr import SETTINGS, pretrain, simclr, some_images, tiny_backbone

    tests = str(Path(__file__).parent)
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(tmp_path), tests, str(rank)], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()[-2000:]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]

    monkeypatch.setattr(simclr, "_REPORT_SECONDS", 0)
    alone, losses = tiny_backbone(), []
    alone.network[4].p = 0.0

    def record(fraction: float, text: str) -> None:
        losses.append(float(text.split()[-1]))

    pretrain(alone, some_images(), SETTINGS, seed=0, device="cpu", progress=record)
    assert len(losses) == 12
    for result in results:
        assert result["losses"] == pytest.approx(losses, abs=0.0011)  # reported to three digits
        for name, value in alone.network.state_dict().items():
            there = torch.tensor(result["state"][name], dtype=value.dtype)
            torch.testing.assert_close(there, value, atol=1e-4, rtol=1e-3)


def test_one_process_needs_no_process_group():
    assert world() == (0, 1)
    rows = torch.rand(3, 2)
    assert gather_rows(rows) is rows
    layer = nn.BatchNorm2d(2)
    images = torch.rand(4, 2, 3, 3)
    with GlobalBatchNorm():
        result = layer(images)
    torch.testing.assert_close(result, nn.BatchNorm2d(2)(images))
