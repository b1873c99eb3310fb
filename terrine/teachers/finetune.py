"""Fine-tuned teachers: the shared backbone, its last x % of parameters and a head trained on a teacher's own records.

The backbone is public and the same for all. Under `current` statistics batch normalisation uses the batch at hand, when
training and when voting; under `original` statistics the backbone's own stored ones, in both: they are never moved, so
that a teacher that trains no layer of the backbone is the linear teacher of the same features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.models.last_layers import last_parameters
from terrine.teachers.kind import Arrays, Queries, Records
from terrine.teachers.linear import start_seed
from terrine.teachers.networks import (
    BLOCK,
    Classifier,
    NetworkSettings,
    Training,
    least_records,
    train_networks,
    vote_with_networks,
)


class FinetuneTeachers:
    """The kind `finetune`, see `terrine.teachers.kind`: a state is the trained parameters alone.

    backbone: what all teachers start from; it is not changed. trainable: percentage of its parameters that are
    trained, the last ones, as whole tensors and at least so much (`terrine.models.last_layers`); the head always
    is. Raises SettingError for a backbone that has no parameters.
    """

    inputs: Literal["features", "images"] = "images"
    stacked = False
    block = BLOCK

    def __init__(
        self, backbone: Backbone, trainable: float, classes: int, settings: NetworkSettings | None = None
    ) -> None:
        if not any(value.requires_grad for value in backbone.network.parameters()):
            raise SettingError(
                f"The backbone '{backbone.describe()['kind']}' has no weights to fine-tune. Use teachers.kind=linear, "
                "or a backbone with weights (resnet10, resnet18)."
            )
        self.backbone, self.classes = backbone, classes
        self.settings = settings or NetworkSettings()
        self.names = [name for name, _ in last_parameters(backbone.network, trainable)]

    @property
    def least(self) -> int:
        """See `TeacherKind`."""
        return least_records(self.backbone, self.settings.statistics)

    @property
    def share(self) -> float:
        """The percentage of the backbone's parameters that is trained, as whole tensors allow."""
        sizes = {name: value.numel() for name, value in self.backbone.network.named_parameters()}
        return 100 * sum(sizes[name] for name in self.names) / sum(sizes.values())

    def classifier(self, seed: int) -> Classifier:
        """Return the backbone with the initial head of `seed`; only what is trained requires a gradient."""
        classifier = Classifier(copy.deepcopy(self.backbone.network), self.backbone.feature_dim, self.classes, seed)
        for name, value in classifier.network.named_parameters():
            value.requires_grad_(name in set(self.names))
        return classifier

    def train(
        self, records: Records, teachers: Sequence[int], *, seed: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield (number, state) of each teacher that has enough records."""
        settings, teachers = self.settings, records.enough(teachers, self.least)
        training = Training(
            start=lambda teacher: self.classifier(start_seed(seed, teacher, settings.initialisation)),
            statistics=settings.statistics,
            finish=_nothing,
            keep=[*(f"network.{name}" for name in self.names), "head.weight", "head.bias"],
        )
        return train_networks(records, teachers, training, settings, seed=seed, device=device)

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str = "cpu") -> np.ndarray:
        """Return votes [queries, teachers]; see `vote_with_networks`."""
        frame = self.classifier(0)
        return vote_with_networks(states, frame, queries, self.settings.statistics, self.classes, device=device)


def _nothing(classifier: Classifier, images: Tensor) -> None:
    """Nothing is left to do: the backbone's statistics stay as they are."""
