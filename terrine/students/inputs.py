"""What a student in training sees of the pool: cached features of a frozen backbone, or the images themselves.

Where only a head is trained, features of the images and of a few views of each are computed once; an epoch then costs
matrix products alone. Where the backbone is trained, views are drawn anew in every step.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from terrine.determinism.randomness import numpy_generator, torch_generator
from terrine.device import mixed_precision
from terrine.models.backbone import Backbone, as_float
from terrine.models.statistics import Statistics, batch_statistics
from terrine.students.material import Material
from terrine.students.views import Augmentation, augment, strong_augmentation, view_features, weak_augmentation

_EVALUATION_BATCH = 500


class Inputs(Protocol):
    """Inputs of a student by image number, and the scores it gives them.

    groups: numbers of the images that may share a training batch; one source each where batch statistics are those of
    the batch. `weak` and `strong` are functions of (rows, seed) alone.
    """

    groups: list[np.ndarray]

    def plain(self, rows: np.ndarray) -> Tensor:
        """The images as they are, on the device."""

    def weak(self, rows: np.ndarray, seed: int) -> Tensor:
        """A weakly changed view of each image."""

    def strong(self, rows: np.ndarray, seed: int) -> Tensor:
        """A strongly changed view of each image."""

    def scores(self, inputs: Tensor) -> Tensor:
        """Scores float32 [B, classes], with gradients where they are enabled."""


class FrozenInputs:
    """Features of the frozen backbone: the images', and those of `views` views of each strength that will be looked at.

    With `views` 0, every view is the image as it is.
    """

    def __init__(
        self,
        material: Material,
        head: nn.Module,
        *,
        strengths: Sequence[str],
        views: int,
        flip: bool,
        seed: int,
        device: torch.device,
    ) -> None:
        self.head, self.device = head, device
        self.groups = [np.arange(len(material.pool.images))]
        self._plain = material.features(device)
        augmentations = {"weak": weak_augmentation(flip), "strong": strong_augmentation(flip)}
        self._views = {
            strength: [_view_features(material, augmentations[strength], k, seed, device) for k in range(views)]
            for strength in strengths
        }

    def plain(self, rows: np.ndarray) -> Tensor:
        return self._to_device(self._plain[rows])

    def weak(self, rows: np.ndarray, seed: int) -> Tensor:
        return self._view("weak", rows, seed)

    def strong(self, rows: np.ndarray, seed: int) -> Tensor:
        return self._view("strong", rows, seed)

    def scores(self, inputs: Tensor) -> Tensor:
        return self.head(inputs)

    def _to_device(self, features: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(features, np.float32)).to(self.device)

    def _view(self, strength: str, rows: np.ndarray, seed: int) -> Tensor:
        views = self._views[strength]
        if not views:
            return self.plain(rows)
        numbers = numpy_generator(seed, f"which {strength} view").integers(len(views), size=len(rows))
        features = np.empty((len(rows), self._plain.shape[1]), np.float32)
        for number, view in enumerate(views):
            own = numbers == number
            features[own] = view[rows[own]]
        return self._to_device(features)


def _view_features(
    material: Material, augmentation: Augmentation, number: int, seed: int, device: torch.device
) -> np.ndarray:
    return material.cache(
        f"{augmentation.name} view {number}, seed {seed}",
        lambda: view_features(
            material.backbone,
            material.pool.images,
            material.pool.batches,
            augmentation,
            number,
            material.statistics,
            seed=seed,
            device=device,
        ),
    )


class ImageInputs:
    """The images, through a backbone that is trained; in bfloat16 (mixed precision) on CUDA."""

    def __init__(
        self, material: Material, backbone: Backbone, head: nn.Module, *, flip: bool, device: torch.device
    ) -> None:
        self.head, self.backbone, self.device = head, backbone, device
        self.statistics: Statistics = material.statistics
        self._images = material.pool.images
        self._weak, self._strong = weak_augmentation(flip), strong_augmentation(flip)
        together = material.statistics == "original"
        self.groups = [np.arange(len(self._images))] if together else list(material.pool.by_source().values())

    def plain(self, rows: np.ndarray) -> Tensor:
        return as_float(torch.from_numpy(np.ascontiguousarray(self._images[rows])).to(self.device))

    def weak(self, rows: np.ndarray, seed: int) -> Tensor:
        return augment(self.plain(rows), self._weak, torch_generator(seed, "weak view"))

    def strong(self, rows: np.ndarray, seed: int) -> Tensor:
        return augment(self.plain(rows), self._strong, torch_generator(seed, "strong view"))

    def scores(self, inputs: Tensor) -> Tensor:
        with batch_statistics(self.backbone, self.statistics), mixed_precision(self.device):
            features = self.backbone.network(inputs)
        return self.head(features.float())


@torch.no_grad()
def scores_of(inputs: Inputs, rows: np.ndarray) -> Tensor:
    """Return the scores [rows, classes] of images as they are, in near-equal batches that never mix groups."""
    scores: list[Tensor] = []
    positions: list[np.ndarray] = []
    for group in inputs.groups:
        own = np.flatnonzero(np.isin(rows, group))
        if len(own) == 0:
            continue
        for part in np.array_split(own, -(-len(own) // _EVALUATION_BATCH)):
            scores.append(inputs.scores(inputs.plain(rows[part])))
            positions.append(part)
    order = torch.from_numpy(np.argsort(np.concatenate(positions), kind="stable"))
    joined = torch.cat(scores)
    return joined[order.to(joined.device)]
