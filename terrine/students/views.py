"""Weak and strong views of images, for students that learn from images without answers.

FixMatch asks that a weakly changed image keeps its class, and that a strongly changed one is given the class of the
weak one. Weak is a shift by up to an eighth of the side, and a mirror image where the data allow it (Sohn et al. 2020,
section 2.3). Strong is a random affine map, brightness, contrast and an erased square: what RandAugment and Cutout
amount to on small images, drawn continuously so that a whole batch is one computation on any device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import torch_generator
from terrine.models.backbone import Backbone, as_float
from terrine.models.invariance import deform
from terrine.models.kinds.scattering import Deformations
from terrine.models.statistics import Statistics


@dataclass(frozen=True)
class Augmentation:
    """How strongly a view differs from its image.

    name: what it is called in caches. brightness, contrast: factors are uniform in 1 ± this. erase: side of the erased
    square at most, as a share of the image's. flip: whether half of the views are mirrored left to right.
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
    backbone: Backbone,
    images: np.ndarray,
    batches: Sequence[np.ndarray],
    augmentation: Augmentation,
    number: int,
    statistics: Statistics,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> np.ndarray:
    """Return a frozen backbone's float32 features [N, feature_dim] of view `number` of every image, batch by batch.

    Like `features_in_batches`, with a view in each image's place; what is random about batch k derives from (seed,
    augmentation, number, k). On a CPU the result does not depend on the number of threads.
    """
    device = torch.device(device)
    out = np.empty((len(images), backbone.feature_dim), np.float32)
    backbone.to(device)

    def compute(position: int) -> None:
        batch = as_float(torch.from_numpy(np.ascontiguousarray(images[batches[position]])).to(device))
        views = augment(batch, augmentation, torch_generator(seed, f"view {augmentation.name}", number, position))
        out[batches[position]] = backbone.features(views, statistics).cpu().numpy()

    for _ in side_by_side(compute, range(len(batches)), device):
        pass
    return out
