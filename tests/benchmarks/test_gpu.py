"""The GPU jobs, as far as a CPU can try them."""

import json
import sys

import numpy as np
import torch
from torch import nn

from benchmarks.gpu import __main__ as queue
from benchmarks.gpu import contrast, features, images, jobs, scratch
from terrine.determinism.randomness import torch_generator
from terrine.pretraining.augment import ViewSettings, apply_views, draw_views
from terrine.teachers.base import TeacherContext, start_seed
from terrine.teachers.network_training import train_classifier
from terrine.teachers.networks import ScratchTeachers

CPU = torch.device("cpu")


def test_views_of_the_own_size_are_those_of_pretraining():
    pictures = torch.rand(8, 3, 16, 16)
    views = draw_views(8, 16, ViewSettings(), seed=1, device="cpu")
    torch.testing.assert_close(contrast.apply(pictures, views, 16), apply_views(pictures, views))
    assert contrast.apply(pictures, views, 12).shape == (8, 3, 12, 12)


def test_a_training_lowers_the_loss_and_goes_on_for_the_time_given():
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16))
    pictures = images.colour_images("programs", 60, 12, 0, CPU, layered=0.5)
    recipe = contrast.Recipe(side=8, batch=20, learning_rate=1e-2, temperature=0.5, hidden=16, warmup=0.1)
    found = contrast.contrast(network, 16, pictures, recipe, seed=0, steps=60)
    assert found["steps"] == 60
    assert found["losses"][-1] < found["losses"][0]
    assert contrast.contrast(network, 16, pictures, recipe, seed=0, seconds=0.5)["steps"] > 20


def test_scratch_teachers_are_those_of_the_product():
    settings = ScratchTeachers(architecture="small_cnn", statistics="original", epochs=2, batch=8)
    kind = settings.build(TeacherContext(10, 1, 12, lambda: None, 0))
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (40, 1, 12, 12), dtype=np.uint8)
    labels, assignment = generator.integers(0, 10, 40), np.arange(40) % 2
    states = list(scratch.train_all(kind, pictures, labels, assignment, seed=3, device=CPU))
    for teacher, state in enumerate(states):
        rows = np.flatnonzero(assignment == teacher)
        records, known = torch.from_numpy(pictures[rows]), torch.from_numpy(labels[rows])
        classifier = kind.classifier(start_seed(3, teacher, settings.initialisation))
        shuffle = torch_generator(3, "teacher shuffle", teacher)
        train_classifier(classifier, records, known, shuffle, "current", settings)
        kind._finish(classifier, records)
        for name, value in state.items():
            torch.testing.assert_close(value, classifier.state_dict()[name], msg=name)
    votes = scratch.votes(kind, states, pictures, 20, "current", CPU)
    assert votes.shape == (40, 2)
    assert (votes[:, 0] != votes[:, 1]).any()


def test_levels_are_means_of_a_network_s_maps():
    backbone = jobs.colour_backbone()
    levels = features.Levels(backbone.network.eval(), (1, 0, 0, 1))
    pictures = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        found = levels(pictures)
        last = (backbone.network(pictures) + backbone.network(pictures.flip(-1))) / 2
    torch.testing.assert_close(found[:, -512:], last)
    assert found.shape == (2, 64 + 512)


def test_weights_come_back_as_they_went_but_for_half_precision(tmp_path):
    backbone, other = jobs.colour_backbone(), jobs.colour_backbone()
    jobs.save_weights(backbone, tmp_path / "weights.safetensors")
    jobs.read_weights(other, tmp_path / "weights.safetensors")
    for mine, own in zip(other.network.state_dict().values(), backbone.network.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, own, atol=1e-3, rtol=1e-3)


def test_finished_jobs_are_not_made_again(tmp_path, monkeypatch):
    begun = []

    class Process:
        def __init__(self, command):
            begun.append(command[command.index("--job") + 1])

        def wait(self, seconds):
            return 0

    monkeypatch.setattr(queue.subprocess, "Popen", Process)
    (tmp_path / "gpu.jsonl").write_text(json.dumps({"job": "diet:done"}) + "\n")
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path), "--data", str(tmp_path)])
    queue.main()
    assert begun == [name for name in jobs.JOBS if name != "diet"]
