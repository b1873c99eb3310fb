"""A small public world for tests of students: images of four kinds, a network, and what teachers would say."""

import numpy as np
import torch
from torch import nn

from terrine.models.backbone import Backbone
from terrine.queries import Queries
from terrine.students.answers import histogram_answers, label_answers
from terrine.students.student import StudentData

CLASSES, SIDE, TEACHERS, SIGMA = 3, 8, 50, 10.0


class FixedFeatures(nn.Module):
    """Pooled pixels, standardised over the batch: a frozen backbone without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.standardise = nn.BatchNorm1d(16, affine=False)

    def forward(self, images):
        return self.standardise(nn.functional.avg_pool2d(images, 2).flatten(1))


def frozen_backbone() -> Backbone:
    return Backbone(FixedFeatures(), 16, {"kind": "fixed", "channels": 1, "size": SIDE, "options": {}})


def small_network() -> Backbone:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(96, 12),
            nn.ReLU(),
        )
    return Backbone(network, 12, {"kind": "small", "channels": 1, "size": SIDE, "options": {}})


def some_images(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 images [count, 1, 8, 8] with a bright corner each, and which corner."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count)
    images = generator.integers(0, 140, (count, 1, SIDE, SIDE))
    for label, (row, column) in enumerate(((0, 0), (0, 4), (4, 4))):
        images[labels == label, :, row : row + 4, column : column + 4] += 70
    return images.astype(np.uint8), labels


def some_material(
    backbone, *, answered=160, count=240, histograms=True, statistics="current", **options
) -> StudentData:
    """Images of two sources in batches of 40; the first `answered` of each batch's share have answers."""
    images, labels = some_images(count)
    batches = np.array_split(np.arange(count), count // 40)
    sources = ["dots" if number % 2 else "waves" for number in range(len(batches))]
    rows = np.sort(np.random.default_rng(1).permutation(count)[:answered])
    generator = np.random.default_rng(2)
    votes = TEACHERS * (0.8 * np.eye(CLASSES)[labels[rows]] + 0.2 / CLASSES)
    noisy = votes + SIGMA * generator.normal(size=votes.shape)
    answers = histogram_answers(noisy, TEACHERS, SIGMA) if histograms else label_answers(noisy.argmax(1), CLASSES)
    return StudentData(Queries(images, batches, sources), rows, answers, backbone, statistics, **options)
