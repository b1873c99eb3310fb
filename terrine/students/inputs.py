"""Inputs of students that are trained by gradient: images, or features of a frozen backbone, and views of them.

If only a head is trained, features of the images and of a few views of each are computed once, so an epoch consists of
matrix products. If the backbone is trained, views are drawn again in every step.

FixMatch asks that a weakly changed image keeps its class, and that a strongly changed one gets the class of the weak
one. A weak change is a shift by up to an eighth of the side, and mirroring if the data allow it (Sohn et al. 2020,
section 2.3). A strong change is a random affine map, brightness, contrast and an erased square: equivalent to
RandAugment and Cutout on small images, drawn continuously so that a whole batch is one computation on any device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import numpy_generator, torch_generator
from terrine.device import mixed_precision
from terrine.errors import SettingError
from terrine.models.backbone import Backbone, as_float
from terrine.models.deformations import Deformations, deform
from terrine.models.statistics import Statistics, batch_statistics, has_batch_norm

if TYPE_CHECKING:
    from terrine.students.student import StudentData

_EVALUATION_BATCH = 500

View = Literal["weak", "strong"]


@dataclass(frozen=True)
class Augmentation:
    """Strength of the random changes of a view.

    Attributes:
        name: Name of the view in caches.
        brightness: Largest change of the factor, which is uniform around 1.
        contrast: Largest change of the factor, which is uniform around 1.
        erase: Maximum side of the erased square, as a share of the image's side.
        flip: Mirror half of the views left to right.
    """

    name: str
    deformations: Deformations
    brightness: float = 0.0
    contrast: float = 0.0
    erase: float = 0.0
    flip: bool = False


def weak_augmentation(flip: bool) -> Augmentation:
    """Return FixMatch's weak augmentation: shifts, and mirror images if `flip`."""
    return Augmentation(f"weak{'-flip' * flip}", Deformations(rotation=0, scale=0, shear=0, shift=0.25), flip=flip)


def strong_augmentation(flip: bool) -> Augmentation:
    """Return the strong augmentation."""
    deformations = Deformations(rotation=30.0, scale=0.25, shear=0.3, shift=0.25)
    return Augmentation(f"strong{'-flip' * flip}", deformations, brightness=0.5, contrast=0.5, erase=0.5, flip=flip)


AUGMENTATIONS = {"weak": weak_augmentation, "strong": strong_augmentation}


def augment(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Return views, float [B, C, H, W] in [0, 1], of float images in [0, 1], each under its own random change.

    `generator` lives on the CPU, so a seed gives the same changes on every device.
    """
    count = len(images)

    def uniform(low: float, high: float, columns: int = 1) -> Tensor:
        return (torch.rand(count, columns, generator=generator) * (high - low) + low).to(images.device)

    views = deform(images, augmentation.deformations, generator)
    if augmentation.flip:
        mirrored = uniform(0, 1) < 0.5
        views = torch.where(mirrored[:, :, None, None], views.flip(-1), views)
    if augmentation.contrast:
        mean = views.mean((1, 2, 3), keepdim=True)
        views = mean + (views - mean) * uniform(1 - augmentation.contrast, 1 + augmentation.contrast)[:, :, None, None]
    if augmentation.brightness:
        views = views * uniform(1 - augmentation.brightness, 1 + augmentation.brightness)[:, :, None, None]
    if augmentation.erase:
        views = _erase(views, uniform(0, augmentation.erase), uniform(0, 1, 2))
    return views.clamp(0, 1)


def _erase(views: Tensor, share: Tensor, centre: Tensor) -> Tensor:
    """Fill `share` [B, 1] of the image's height and width around `centre` [B, 2] in [0, 1] with the image's mean."""
    rows, columns = (
        ((torch.arange(side, device=views.device) + 0.5) / side - centre[:, axis, None]).abs() <= share / 2
        for axis, side in enumerate(views.shape[-2:])
    )
    square = rows[:, :, None] & columns[:, None, :]
    return torch.where(square[:, None], views.mean((1, 2, 3), keepdim=True), views)


def view_features(
    data: StudentData, augmentation: Augmentation, number: int, *, seed: int, device: torch.device | str = "cpu"
) -> np.ndarray:
    """Return cached float32 features [N, feature_dim] of view `number` of every image, batch by batch.

    Like `features_in_batches` for a frozen backbone, on views instead of images. The randomness of batch k derives from
    (seed, augmentation, number, k). On a CPU the result does not depend on the number of threads.
    """
    device, backbone, images, batches = torch.device(device), data.backbone, data.pool.images, data.pool.batches

    def compute_all() -> np.ndarray:
        out = np.empty((len(images), backbone.feature_dim), np.float32)
        backbone.to(device)

        def compute(position: int) -> None:
            batch = as_float(torch.from_numpy(np.ascontiguousarray(images[batches[position]])).to(device))
            views = augment(batch, augmentation, torch_generator(seed, f"view {augmentation.name}", number, position))
            out[batches[position]] = backbone.features(views, data.statistics).cpu().numpy()

        for _ in side_by_side(compute, range(len(batches)), device):
            pass
        return out

    return data.cache(f"{augmentation.name} view {number}, seed {seed}", compute_all)


class Inputs(ABC):
    """Inputs of a student by image number, and its scores of them.

    Attributes:
        groups: Numbers of the images that may share a training batch; of one source each with current statistics.
    """

    groups: list[np.ndarray]

    @abstractmethod
    def plain(self, rows: np.ndarray) -> Tensor:
        """Return the images unchanged, or their features, on the device."""

    @abstractmethod
    def view(self, strength: View, rows: np.ndarray, seed: int) -> Tensor:
        """Return a changed view of each image; it depends only on the arguments."""

    @abstractmethod
    def scores(self, inputs: Tensor) -> Tensor:
        """Return scores float32 [B, classes], with gradients if they are enabled."""


class FrozenInputs(Inputs):
    """Features of the frozen backbone: of the images, and of `views` views of each strength.

    With `views` 0, every view is the unchanged image.
    """

    def __init__(
        self,
        data: StudentData,
        head: nn.Module,
        *,
        strengths: Sequence[View],
        views: int,
        flip: bool,
        seed: int,
        device: torch.device,
    ) -> None:
        self.head, self.device = head, device
        self.groups = [np.arange(len(data.pool.images))]
        self._plain = data.features(device)
        self._views = {
            strength: [
                view_features(data, AUGMENTATIONS[strength](flip), k, seed=seed, device=device) for k in range(views)
            ]
            for strength in strengths
        }

    def plain(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._plain[rows], np.float32)).to(self.device)

    def view(self, strength: View, rows: np.ndarray, seed: int) -> Tensor:
        views = self._views[strength]
        if not views:
            return self.plain(rows)
        numbers = numpy_generator(seed, f"which {strength} view").integers(len(views), size=len(rows))
        features = np.empty((len(rows), self._plain.shape[1]), np.float32)
        for number, view in enumerate(views):
            own = numbers == number
            features[own] = view[rows[own]]
        return torch.from_numpy(features).to(self.device)

    def scores(self, inputs: Tensor) -> Tensor:
        return self.head(inputs)


class ImageInputs(Inputs):
    """The images, through a backbone that is trained; in bfloat16 (mixed precision) on CUDA.

    With `micro_batch`, a pass that needs gradients keeps no activations: each part of `micro_batch` images is computed
    again for its gradient, so memory is that of one part. Loss and gradients are those of the whole batch; computing
    them in parts takes a third more time. Raises SettingError if each part would be normalised by its own statistics.
    """

    def __init__(
        self,
        data: StudentData,
        backbone: Backbone,
        head: nn.Module,
        *,
        flip: bool,
        device: torch.device,
        micro_batch: int | None = None,
    ) -> None:
        if micro_batch is not None and data.statistics != "original" and has_batch_norm(backbone):
            raise SettingError(
                f"student.micro_batch={micro_batch} would normalise each part of a batch by itself, under "
                f"student.statistics={data.statistics}. Set student.statistics=original, or micro_batch to null."
            )
        self.head, self.backbone, self.device, self.flip = head, backbone, device, flip
        self.micro_batch = micro_batch
        self.statistics: Statistics = data.statistics
        self._images = data.pool.images
        together = data.statistics == "original"
        self.groups = [np.arange(len(self._images))] if together else list(data.pool.by_source().values())

    def plain(self, rows: np.ndarray) -> Tensor:
        return as_float(torch.from_numpy(np.ascontiguousarray(self._images[rows])).to(self.device))

    def view(self, strength: View, rows: np.ndarray, seed: int) -> Tensor:
        generator = torch_generator(seed, f"{strength} view")
        return augment(self.plain(rows), AUGMENTATIONS[strength](self.flip), generator)

    def scores(self, inputs: Tensor) -> Tensor:
        if self.micro_batch is None:
            return self.head(self._features(inputs))
        parts = inputs.split(self.micro_batch)
        if torch.is_grad_enabled():
            return self.head(torch.cat([checkpoint(self._features, part, use_reentrant=False) for part in parts]))
        return self.head(torch.cat([self._features(part) for part in parts]))

    def _features(self, inputs: Tensor) -> Tensor:
        with batch_statistics(self.backbone, self.statistics), mixed_precision(self.device):
            return self.backbone.network(inputs).float()


@torch.no_grad()
def compute_scores(inputs: Inputs, rows: np.ndarray) -> Tensor:
    """Return the scores [rows, classes] of unchanged images, in near-equal batches that never mix groups."""
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
