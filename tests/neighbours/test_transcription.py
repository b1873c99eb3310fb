"""Neighbouring datasets through the real stages to annotations: one client's sum moves, by no more than is charged."""

import itertools

import numpy as np
import pytest
import torch

from flows.stages import run_through
from tasks.config.params import validate
from tasks.config.values import merge
from tasks.runtime.run import Run
from tasks.transcription.clients import read_clients
from tasks.transcription.session import compute_contributions
from terrine.privacy.noise import lattice_step
from tests.neighbours import worlds
from tests.neighbours.formats import FORMATS
from tests.neighbours.runs import settle

FORM = FORMATS["npz with ids"]
CLIENTS, SIGMA, SAMPLES = 4, 20.0, 6


def transcription(norm, limit, architecture):
    student = "scattering" if architecture == "linear" else architecture
    return {
        "partition": {"teachers": CLIENTS},
        "transcription": {
            "epsilon": 30,
            "iterations": 2,
            "batch": SAMPLES,
            "federated": True,
            "annotation": {"sigma": SIGMA, "norm": norm, "top_k": 2, "limit": limit},
            "teacher": {"architecture": architecture, "epochs": 1, "batch": 8},
            "student": {"architecture": student, "projection": 8, "invariance": False},
            "generator": {"width": 2, "latent": 2},
        },
    }


@pytest.mark.parametrize("architecture", ["cryptonet", "linear"])
@pytest.mark.parametrize("step", ["replaced", "removed"])
def test_one_record_moves_one_client_and_its_sum_by_no_more_than_is_charged(tmp_path, architecture, step):
    world = worlds.base()
    changed = worlds.STEPS["record"][step].make(world, "record", "r211", FORM.positional, FORM.classes)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (SAMPLES, 1, 8, 8), dtype=np.uint8))
    student = torch.rand(SAMPLES, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    runs = {}
    for name, other in (("one", world), ("two", changed)):
        runs[name] = settle(tmp_path / name, FORM, other, **transcription("sample", "clip", architecture))
        run_through(runs[name], "dataset", "teach")
    answers = [read_clients(run, range(CLIENTS)).probabilities(images) for run in runs.values()]
    moved = {number for number in range(CLIENTS) if not torch.equal(answers[0][number], answers[1][number])}
    assert len(moved) == 1
    unit = int(1 / lattice_step(SIGMA))
    for norm, limit in itertools.product(("batch", "sample"), ("normalise", "clip")):
        totals = []
        for run in runs.values():
            settings = merge(run.params.model_dump(mode="json"), transcription(norm, limit, architecture))
            same = Run(run.root, run.name, validate(settings))
            totals.append(compute_contributions(same, range(CLIENTS), 0, images, student))
        squares = (totals[0] - totals[1]).astype(object) ** 2
        assert 0 < (squares.sum() if norm == "batch" else squares.sum(axis=1).max()) <= 4 * unit**2
