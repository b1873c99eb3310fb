"""Teachers trained from scratch: a whole network each, on their own records alone (classic PATE; 000_..., ablations).

Under `original` statistics a teacher votes with the batch-norm statistics of its own records, recorded with the final
weights; under `current` statistics with those of the query batch at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from terrine.errors import SettingError
from terrine.models.backbone import as_float
from terrine.models.registry import build_backbone
from terrine.models.statistics import has_batch_norm, record_statistics
from terrine.teachers.kind import Arrays, Queries, Records
from terrine.teachers.linear import start_seed
from terrine.teachers.networks import (
    BLOCK,
    Classifier,
    NetworkSettings,
    Training,
    least_records,
    parts,
    train_networks,
    vote_with_networks,
)

ARCHITECTURES = ("small_cnn", "resnet10", "resnet18", "vgg9", "cryptonet", "pate_cnn")


class ScratchTeachers:
    """The kind `scratch`, see `terrine.teachers.kind`: a state is all weights, and recorded statistics if they count.

    architecture: one of `ARCHITECTURES`, for images of `channels` channels and side `size`.
    """

    inputs: Literal["features", "images"] = "images"
    stacked = False
    block = BLOCK

    def __init__(
        self, architecture: str, channels: int, size: int, classes: int, settings: NetworkSettings | None = None
    ) -> None:
        if architecture not in ARCHITECTURES:
            raise SettingError(
                f"teachers.architecture: '{architecture}' is unknown. Known: {', '.join(ARCHITECTURES)}."
            )
        self.architecture, self.channels, self.size, self.classes = architecture, channels, size, classes
        self.settings = settings or NetworkSettings()

    @cached_property
    def least(self) -> int:
        """See `TeacherKind`: it learns under current statistics."""
        return least_records(self.classifier(0), "current")

    def classifier(self, seed: int) -> Classifier:
        """Return a classifier with the initial weights of `seed`."""
        backbone = build_backbone(self.architecture, channels=self.channels, size=self.size, seed=seed)
        return Classifier(backbone.network, backbone.feature_dim, self.classes, seed)

    def initial(self, seed: int) -> Arrays:
        """Return the state of a classifier with the initial weights of `seed`."""
        classifier = self.classifier(seed)
        state = dict(classifier.named_parameters())
        if self.settings.statistics == "original":
            state |= {name: value for name, value in classifier.named_buffers() if value.is_floating_point()}
        return {name: value.detach().numpy() for name, value in state.items()}

    def train(
        self, records: Records, teachers: Sequence[int], *, seed: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield (number, state) of each teacher that has enough records."""
        settings, teachers = self.settings, records.enough(teachers, self.least)
        recorded = settings.statistics == "original"

        def finish(classifier: Classifier, images: Tensor) -> None:
            if recorded and has_batch_norm(classifier):
                batches = torch.tensor_split(images, parts(len(images), settings.batch))
                record_statistics(classifier, map(as_float, batches), "all")

        training = Training(
            start=lambda teacher: self.classifier(start_seed(seed, teacher, settings.initialisation)),
            statistics="current",
            finish=finish,
            keep=list(self.initial(seed)),
        )
        return train_networks(records, teachers, training, settings, seed=seed, device=device)

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str = "cpu") -> np.ndarray:
        """Return votes [queries, teachers]; see `vote_with_networks`."""
        frame = self.classifier(0)
        return vote_with_networks(states, frame, queries, self.settings.statistics, self.classes, device=device)
