"""The student as one network, from images to probabilities, under any of the statistics it can be used with."""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from terrine.classifiers import Head, probabilities
from terrine.deployment.normalisation import freeze_statistics, single_statistics, weighted_statistics
from terrine.models.backbone import Backbone, as_float
from terrine.models.statistics import batch_statistics

ServingStatistics: TypeAlias = Literal["released", "current", "single", "frozen", "original"]
"""released: of the private images, with noise (`terrine.models.moments`); current: of the request, helped by reference
images when it is small; single: of each image and the reference images; frozen: of the reference images alone;
original: of the backbone's pretraining."""

REFERENCE_WEIGHT = 2.0
"""As how many images the reference images count, all together, beside own ones (measured: docs/serving.md)."""


class StudentNetwork(nn.Module):
    """From images [B, C, H, W], uint8 or float in [0, 1], to class probabilities [B, classes], float32.

    One call is one batch. Under `released`, `single`, `frozen` and `original` statistics a row depends on its own image
    alone, under `current` on the whole batch. `reference` [R, C, H, W] are public images, needed for `single` and
    `frozen`; `reference_weight` says as how many images they count. The backbone is copied, never changed.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        statistics: ServingStatistics,
        reference: Tensor | None = None,
        reference_weight: float = REFERENCE_WEIGHT,
    ) -> None:
        super().__init__()
        self.reference_weight = reference_weight
        self.statistics = statistics
        self.backbone = copy.deepcopy(backbone.network)
        self.head, self.findings = head.module(), head.findings
        if statistics in ("single", "frozen"):
            if reference is None:
                raise ValueError(f"{statistics} statistics are made of reference images, and none were given")
            freeze_statistics(self.backbone, as_float(reference))
        self.requires_grad_(False)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        images = as_float(images)
        with self._statistics():
            features = self.backbone(images)
        return probabilities(self.head(features.float()), self.findings)

    @torch.no_grad()
    def filled(self, images: Tensor, reference: Tensor) -> Tensor:
        """Return probabilities of a small batch, normalised with its own and, weighted, the reference images'.

        images, reference: [B, C, H, W] and [R, C, H, W]; the result has B rows.
        """
        count, others = len(images), len(reference)
        weights = torch.full((count + others,), 1 / (count + self.reference_weight), dtype=torch.float64)
        weights[count:] *= self.reference_weight / others
        batch = torch.cat([as_float(images), as_float(reference)])
        with weighted_statistics(weights.to(batch)):
            features = self.backbone(batch)[:count]
        return probabilities(self.head(features.float()), self.findings)

    def _statistics(self) -> AbstractContextManager[None]:
        if self.statistics == "current":
            return batch_statistics(self.backbone, "current")
        return single_statistics(self.reference_weight) if self.statistics == "single" else nullcontext()
