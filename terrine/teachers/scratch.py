"""Teachers trained from scratch: a whole network each, on their own records alone (classic PATE, Papernot et al. 2017).

Under `original` statistics a teacher votes with the batch-norm statistics of its own records, recorded with the final
weights; under `current` statistics with those of the query batch at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from terrine.geometry import Size
from terrine.models.backbone import as_float
from terrine.models.registry import build_backbone
from terrine.models.statistics import Statistics, has_batch_norm, record_statistics
from terrine.teachers.kind import Arrays
from terrine.teachers.networks import Classifier, NetworkKind, parts

if TYPE_CHECKING:
    from terrine.teachers.kinds.scratch import ScratchTeachers


class ScratchKind(NetworkKind):
    """The kind `scratch`, see `terrine.teachers.kind`: a state is all weights, and recorded statistics if they count.

    channels, size: of the images.
    """

    settings: ScratchTeachers

    def __init__(self, settings: ScratchTeachers, channels: int, size: Size, classes: int) -> None:
        super().__init__(settings, classes)
        self.channels, self.size = channels, size

    def classifier(self, seed: int) -> Classifier:
        """Return a classifier with the initial weights of `seed`."""
        backbone = build_backbone(self.settings.architecture, channels=self.channels, size=self.size, seed=seed)
        return Classifier(backbone.network, backbone.feature_dim, self.classes, seed)

    @property
    def kept(self) -> list[str]:
        classifier = self.classifier(0)
        recorded = classifier.named_buffers() if self.settings.statistics == "original" else ()
        buffers = [name for name, value in recorded if value.is_floating_point()]
        return [name for name, _ in classifier.named_parameters()] + buffers

    @property
    def training_statistics(self) -> Statistics:
        """It learns under current statistics, whatever it votes with."""
        return "current"

    def finish(self, classifier: Classifier, images: Tensor) -> None:
        if self.settings.statistics == "original" and has_batch_norm(classifier):
            batches = torch.tensor_split(images, parts(len(images), self.settings.batch))
            record_statistics(classifier, map(as_float, batches), "all")

    def initial(self, seed: int) -> Arrays:
        """Return the state of a classifier with the initial weights of `seed`."""
        state = self.classifier(seed).state_dict()
        return {name: state[name].numpy() for name in self.kept}
