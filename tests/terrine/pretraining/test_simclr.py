"""SimCLR: its loss, its views, one run on one device or several."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from terrine.errors import ArtefactError, InputError, SettingError
from terrine.models.backbone import Backbone
from terrine.models.backbone_files import save_backbone
from terrine.pretraining import simclr
from terrine.pretraining.augment import ViewSettings
from terrine.pretraining.settings import SimCLRSettings
from terrine.pretraining.simclr import nt_xent, pretrain

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = SimCLRSettings(epochs=3, batch=8, projection=4, learning_rate=3e-3, checkpoint_minutes=1e-9)


def tiny_backbone() -> Backbone:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(200, 6),
    )
    return Backbone(network, 6, {"kind": "tiny", "channels": 1, "size": 12, "options": {}})


def some_images(count: int = 35) -> np.ndarray:
    """Noise of ten levels, so that images can be recognised."""
    generator = np.random.default_rng(0)
    smooth = generator.integers(0, 256, (count, 1, 3, 3))
    return np.kron(smooth, np.ones((1, 1, 4, 4))).astype(np.uint8)


def state(backbone: Backbone) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in backbone.network.state_dict().items()}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_the_loss_falls_and_the_backbone_changes_in_place(monkeypatch):
    monkeypatch.setattr(simclr, "VIEWS", ViewSettings(crop_area=(0.7, 1.0), jitter_probability=0.0))
    backbone, calls = tiny_backbone(), []
    before = state(backbone)
    settings = SETTINGS.model_copy(update={"epochs": 25})
    history = pretrain(
        backbone, some_images(), settings, seed=0, device="cpu", progress=lambda *report: calls.append(report)
    )
    assert [row["epoch"] for row in history] == list(range(1, 26))
    losses = [row["loss"] for row in history]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:2])
    assert calls[-1][0] == 1.0
    assert calls[-1][1].startswith("epoch 25 of 25, loss ")
    assert not equal(state(backbone), before)
    assert not any(layer.training for layer in backbone.modules())


def test_a_run_depends_on_its_seed_alone():
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(results))
        generator_before = torch.random.get_rng_state()
        backbone = tiny_backbone()
        torch.random.set_rng_state(generator_before)
        history = pretrain(backbone, some_images(), SETTINGS, seed=seed, device="cpu")
        assert torch.equal(torch.random.get_rng_state(), generator_before)
        results.append((history, state(backbone)))
    assert results[0][0] == results[1][0] != results[2][0]
    assert equal(results[0][1], results[1][1])
    assert not equal(results[0][1], results[2][1])


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[2])
from test_simclr import SETTINGS, pretrain, simclr, some_images, tiny_backbone
simclr._REPORT_SECONDS = 0
def kill(fraction, text):
    if fraction == 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
pretrain(tiny_backbone(), some_images(), SETTINGS, seed=0, device="cpu", checkpoint=Path(sys.argv[1]), progress=kill)
"""


def test_a_run_killed_in_the_middle_of_an_epoch_ends_with_the_same_bits(tmp_path, monkeypatch):
    uninterrupted = tiny_backbone()
    expected = pretrain(uninterrupted, some_images(), SETTINGS, seed=0, device="cpu", checkpoint=tmp_path / "whole")

    checkpoint = tmp_path / "checkpoint"
    command = [sys.executable, "-c", KILLED, str(checkpoint), str(Path(__file__).parent)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -9
    monkeypatch.setattr(simclr, "_REPORT_SECONDS", 0)
    steps = []
    resumed = tiny_backbone()
    history = pretrain(
        resumed,
        some_images(),
        SETTINGS,
        seed=0,
        device="cpu",
        checkpoint=checkpoint,
        progress=lambda fraction, text: steps.append(round(12 * fraction)),
    )
    assert steps == list(range(6, 13))
    assert history == expected
    assert checkpoint.read_bytes() == (tmp_path / "whole").read_bytes()
    save_backbone(uninterrupted, tmp_path / "a")
    save_backbone(resumed, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_finished_run_is_loaded_and_not_repeated(tmp_path):
    first, again, calls = tiny_backbone(), tiny_backbone(), []
    history = pretrain(first, some_images(), SETTINGS, seed=0, device="cpu", checkpoint=tmp_path / "c")
    repeated = pretrain(
        again,
        some_images(),
        SETTINGS,
        seed=0,
        device="cpu",
        checkpoint=tmp_path / "c",
        progress=lambda *report: calls.append(report),
    )
    assert repeated == history
    assert calls == []
    assert equal(state(first), state(again))
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_checkpoint_of_another_run_is_refused_and_kept(tmp_path):
    path = tmp_path / "c"
    pretrain(tiny_backbone(), some_images(), SETTINGS, seed=0, device="cpu", checkpoint=path)
    before = path.read_bytes()
    for change, message in (({"seed": 1}, "seed differ"), ({"images": some_images() ^ 1}, "images differ")):
        arguments = {"images": some_images(), "seed": 0, "device": "cpu", "checkpoint": path, **change}
        with pytest.raises(ArtefactError, match=message):
            pretrain(tiny_backbone(), settings=SETTINGS, **arguments)
    settings = SETTINGS.model_copy(update={"temperature": 0.5})
    with pytest.raises(ArtefactError, match="settings differ"):
        pretrain(tiny_backbone(), some_images(), settings, seed=0, device="cpu", checkpoint=path)
    assert path.read_bytes() == before


def test_a_damaged_checkpoint_is_named(tmp_path):
    path = tmp_path / "c"
    pretrain(tiny_backbone(), some_images(), SETTINGS, seed=0, device="cpu", checkpoint=path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ArtefactError, match=r"cannot be read.*Delete it"):
        pretrain(tiny_backbone(), some_images(), SETTINGS, seed=0, device="cpu", checkpoint=path)


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_the_learning_rate_follows_its_schedule(monkeypatch, schedule):
    rates = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), step(self)))
    settings = SETTINGS.model_copy(update={"schedule": schedule})
    pretrain(tiny_backbone(), some_images(), settings, seed=0, device="cpu")
    expected = [3e-3 * ((1 + np.cos(np.pi * k / 12)) / 2 if schedule == "cosine" else 1) for k in range(12)]
    np.testing.assert_allclose(rates, expected)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (some_images(5), SettingError, "5 images are fewer than one batch of 8"),
        (some_images().astype(np.float32), InputError, "float32"),
        (some_images()[:, :, :8], InputError, r"\(N, 1, 12, 12\)"),
    ],
)
def test_impossible_runs_are_refused(images, error, message):
    with pytest.raises(error, match=message):
        pretrain(tiny_backbone(), images, SETTINGS, seed=0, device="cpu")


def nt_xent_plainly(first: torch.Tensor, second: torch.Tensor, temperature: float) -> float:
    views = [row.double() for row in first] + [row.double() for row in second]
    count, total = len(first), 0.0

    def similarity(i: int, j: int) -> float:
        return float(views[i] @ views[j] / (views[i].norm() * views[j].norm())) / temperature

    for i in range(2 * count):
        partner = (i + count) % (2 * count)
        others = sum(math.exp(similarity(i, k)) for k in range(2 * count) if k != i)
        total -= math.log(math.exp(similarity(i, partner)) / others)
    return total / (2 * count)


@pytest.mark.parametrize("count", [2, 3, 17])
@pytest.mark.parametrize("width", [1, 4, 128])
@pytest.mark.parametrize("temperature", [0.07, 0.5, 1.0])
def test_the_loss_equals_the_double_loop(count, width, temperature):
    generator = torch.Generator().manual_seed(count * width)
    first, second = torch.randn(2, count, width, generator=generator)
    assert float(nt_xent(first, second, temperature)) == pytest.approx(
        nt_xent_plainly(first, second, temperature), rel=1e-4
    )


def test_low_precision_views_are_compared_in_single_precision():
    first, second = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nt_xent(first, second, 0.1)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(nt_xent_plainly(first, second, 0.1), rel=1e-4)
