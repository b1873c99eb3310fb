"""Presets for a GPU, on stand-in data and with random weights: all stages, a few steps each, and memory."""

import numpy as np
import pytest
import torch

from flows.stages import run_through
from tasks.config.params import merge_overrides, validate
from tasks.config.presets import load_values
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from tasks.transcription.graph import pipeline_of
from terrine.models.architecture import build_backbone

CARD = 70e9
"""Bytes of an H100 that a step may fill."""

SMALL = {
    "device": "cpu",
    "partition": {"teachers": 2},
    "ledger": {"account": "stand-in", "epsilon": 1e6},
}
PRETRAINED = {"pretraining": {"images": {"count": 12}, "epochs": 1, "batch": 4}}
DIET = PRETRAINED | {
    "queries": {"count": 12, "batch": 4},
    "teachers": {"epochs": 1},
    "aggregation": {"threshold": 1},
    "student": {"epochs": 1},
}
PRESETS = {
    # settings of fewer steps; the largest batch of which a step keeps activations, with both views of SimCLR
    "diet-pate-mnist": (DIET, 2 * 256),
    "diet-pate-cifar10": (DIET, 2 * 256),
    "prom-pate-cifar10": (None, 64),  # memory only: a step of its Swin takes minutes on a processor
    "terrine-cifar10-network": (
        PRETRAINED | {"queries": {"count": 40}, "backbone": {"projection": 20}, "aggregation": {"epsilon": 20}},
        2 * 768,
    ),
    "dpsd-mnist": ({"transcription": {"iterations": 3, "batch": 8, "teacher": {"epochs": 1}}}, 256),
}


@pytest.fixture
def records(tmp_path):
    """Return a function that writes random images of ten classes to an .npz file."""

    def written(size, channels, records):
        generator = np.random.default_rng(0)
        path = tmp_path / "records.npz"
        arrays = {}
        for split, count in (("train", records), ("test", records)):
            arrays[f"{split}_images"] = generator.integers(0, 256, (count, channels, size, size), dtype=np.uint8)
            arrays[f"{split}_labels"] = np.arange(count) % 10
        np.savez(path, **arrays)
        return {"name": "npz", "path": str(path)}

    return written


def activations(network, images):
    """Return the bytes that a pass keeps for its gradients, per image, in single precision."""
    kept = {}

    def keep(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(images)
    return 4 * sum(kept.values()) / len(images)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_for_a_gpu_runs_through_all_stages_and_its_steps_fit_into_its_memory(
    name, tmp_path, records, pytestconfig
):
    few, batch = PRESETS[name]
    own = load_values(pytestconfig.rootpath, name)
    if few is not None:
        # Sums of fewer records would drown in noise.
        data = records(own["data"]["size"], own["data"]["channels"], 60 if "network" in name else 20)
        values = merge_overrides(load_values(pytestconfig.rootpath, name, SMALL, few), {"data": data})
        run = Run(tmp_path, "stand-in", validate(values))
        stages = pipeline_of(run.params).names
        run_through(run, stages[1], "evaluate")
        assert 0 <= read_json(run.folders.evaluation)["accuracy"] <= 1
    size, channels = own["data"]["size"], own["data"]["channels"]
    if "transcription" in own:
        backbone = build_backbone(own["transcription"]["teacher"]["architecture"], channels=channels, size=size, seed=0)
    else:
        weights = {"backbone": {"weights": "initial"}} if name == "prom-pate-cifar10" else {}
        given = validate(merge_overrides(own, weights))
        backbone = given.backbone.build(channels, size, 0)
    network = backbone.network.trainable()[0] if hasattr(backbone.network, "trainable") else backbone.network
    side = own["backbone"]["enlarge"] if name == "prom-pate-cifar10" else size
    needed = batch * activations(network, torch.rand(2, channels, side, side))
    weights = 16 * sum(parameter.numel() for parameter in network.parameters())  # with gradients and Adam's moments
    assert 1e6 < needed + weights < CARD
