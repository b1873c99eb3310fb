"""Kernel distance between synthetic and real images over the features of an extractor.

The squared maximum mean discrepancy with the polynomial kernel k(x, y) = (x·y / d + 1)³ of d features, by the unbiased
estimator (Binkowski et al. 2018, section 4; Gretton et al. 2012, lemma 6). The estimate is averaged over disjoint
blocks, which also give its standard error. KID is this distance with an Inception network; other extractors give other
values, and only values of the same extractor are comparable. For equal distributions the distance is zero on average.

The distance depends on the real images: if these are private, it is private.

    extractor = scattering_extractor(channels=1)
    figure = image_distances(extractor, {"dead_leaves": synthetic}, real, seed=0)["dead_leaves"]
    figure.distance, figure.standard_error
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError
from terrine.geometry import sides, size_of
from terrine.models.architecture import build_backbone
from terrine.models.backbone import as_float, features_in_batches
from terrine.npy import Rows

BLOCK = 500
"""Largest number of rows that a block contains from each sample."""
SAMPLE = 2_000
"""Largest number of images of each set in `image_distances`."""
SIDE = 32
"""Largest side of images for the scattering extractor; larger images are reduced."""
_FEATURES, _SEED, _BATCH = 500, 0, 250


@dataclass(frozen=True)
class Extractor:
    """Named features of images, from uint8 [N, C, H, W] to float32 [N, d].

    An image's features must not depend on other images.
    """

    name: str
    features: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Distance:
    """A kernel distance: the mean over blocks, its standard error, and the number of rows used from each sample."""

    distance: float
    standard_error: float
    blocks: int
    rows: int


def kernel_distance(synthetic: np.ndarray, real: np.ndarray, *, seed: int, block: int = BLOCK) -> Distance:
    """Return the unbiased, block-averaged squared kernel distance between features [N, d] and [M, d].

    Args:
        synthetic: float [N, d], finite, with at least four rows.
        real: float [M, d], likewise.
        seed: Seed of the shuffle before rows are cut into at least two disjoint blocks; remaining rows are left out.
        block: Largest number of rows of a block, at least 2.

    Raises:
        InputError: The arrays have the wrong shape or type.
    """
    for name, rows in (("synthetic", synthetic), ("real", real)):
        if rows.ndim != 2 or len(rows) < 4 or rows.shape[1] != real.shape[-1] or not np.isfinite(rows).all():
            raise InputError(
                f"kernel distance: the {name} features of shape {rows.shape} must be [rows, {real.shape[-1]}], finite, "
                "with at least 4 rows."
            )
    fewest = min(len(synthetic), len(real))
    size = min(block, fewest // 2)
    blocks = fewest // size
    first, second = (
        numpy_generator(seed, f"kernel distance {name}").permutation(len(rows))[: blocks * size].reshape(blocks, size)
        for name, rows in (("synthetic", synthetic), ("real", real))
    )
    found = np.array([_of_block(synthetic[a], real[b]) for a, b in zip(first, second, strict=True)])
    return Distance(float(found.mean()), float(found.std(ddof=1) / np.sqrt(blocks)), blocks, blocks * size)


def _of_block(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    within_x, within_y, between = ((a @ b.T / x.shape[1] + 1) ** 3 for a, b in ((x, x), (y, y), (x, y)))
    pairs = len(x) * (len(x) - 1)
    within = [(kernel.sum() - np.trace(kernel)) / pairs for kernel in (within_x, within_y)]
    return float(sum(within) - 2 * between.mean())


def normalise(reference: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Shift and scale features [N, d] so that the reference has mean zero and mean squared length d.

    A single scale does not amplify features that hardly vary in the reference, such as the black margin of digits. It
    gives the kernel's constant the same meaning for every extractor.
    """
    mean = reference.mean(axis=0, dtype=np.float64)
    scale = float(np.sqrt(np.mean((reference - mean) ** 2)))
    return (features - mean) / (scale if scale > 0 else 1.0)


def image_distances(
    extractor: Extractor,
    synthetic: Mapping[str, Rows],
    real: Rows,
    *,
    seed: int,
    sample: int = SAMPLE,
) -> dict[str, Distance]:
    """Return the kernel distance between each set of synthetic images and real ones.

    Args:
        extractor: Extractor of the features, which are normalised by those of the real images.
        synthetic: uint8 [N, C, H, W] by name.
        real: uint8 [M, C, H, W].
        seed: Seed of the sampling.
        sample: Largest number of images that is read from each set.

    Raises:
        InputError: the images differ in shape, or there are too few.
    """
    for images in synthetic.values():
        if images.shape[1:] != real.shape[1:]:
            raise InputError(
                f"Synthetic images of shape {images.shape[1:]} cannot be compared with real ones of {real.shape[1:]}."
            )

    def features(images: Rows, name: str) -> np.ndarray:
        return extractor.features(np.asarray(images[draw_rows(len(images), sample, seed, name)]))

    raw = features(real, "real")
    reference = normalise(raw, raw)
    return {
        name: kernel_distance(normalise(raw, features(images, "synthetic")), reference, seed=seed)
        for name, images in synthetic.items()
    }


def draw_rows(count: int, sample: int, seed: int, name: str) -> np.ndarray:
    """Return at most `sample` of `count` row indices in ascending order, drawn by (seed, name)."""
    order = numpy_generator(seed, f"distance sample {name}").permutation(count)
    return np.sort(order[:sample])


def scattering_extractor(channels: int, device: torch.device | str = "cpu") -> Extractor:
    """Return a fixed extractor of 500 projected log scattering coefficients, without weights or data.

    Images larger than 32x32 are averaged to that size, which bounds memory and emphasises shapes over resolution.
    """

    def features(images: np.ndarray) -> np.ndarray:
        size = size_of([min(SIDE, side) for side in images.shape[-2:]])
        backbone = build_backbone("scattering", channels=channels, size=size, seed=_SEED, projection=_FEATURES)
        if size != size_of(images.shape):
            parts = (as_float(torch.from_numpy(part)) for part in np.array_split(images, -(-len(images) // _BATCH)))
            reduced = [F.adaptive_avg_pool2d(part, sides(size)).mul(255).round() for part in parts]
            images = torch.cat(reduced).to(torch.uint8).numpy()
        batches = np.array_split(np.arange(len(images)), max(1, -(-len(images) // _BATCH)))
        return features_in_batches(backbone, images, batches, "original", device)

    return Extractor("scattering", features)
