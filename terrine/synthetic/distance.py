"""How far synthetic images are from real ones: a kernel distance over the features of any extractor.

The squared maximum mean discrepancy with the polynomial kernel k(x, y) = (x·y / d + 1)³ of d features, by the unbiased
estimator (Binkowski et al. 2018, section 4; Gretton et al. 2012, lemma 6), averaged over disjoint blocks, which also
give its standard error. Published tables compute it on an Inception network's features and call it KID; here the
extractor is whatever one has, so a figure goes by the extractor's name and compares with figures of the same extractor
alone. Being unbiased it is about zero, and as often below as above, for two samples of one distribution.

It is a function of the real images: where these are private, so is it.

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
from terrine.errors import InputError, SettingError
from terrine.geometry import sides, size_of
from terrine.models.architecture import build_backbone
from terrine.models.backbone import as_float, features_in_batches
from terrine.npy import Rows

BLOCK = 500
"""Most rows of each sample in one block."""
SAMPLE = 2_000
"""Most images of each kind that `image_distances` uses."""
SIDE = 32
"""Images that are larger are reduced to this side before the scattering extractor sees them."""
_FEATURES, _SEED, _BATCH = 500, 0, 250


@dataclass(frozen=True)
class Extractor:
    """Named features of images: `features` takes uint8 [N, C, H, W] and returns float32 [N, d].

    An image's features must depend on that image alone.
    """

    name: str
    features: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Distance:
    """A kernel distance: the mean over `blocks` blocks and its standard error; rows of each sample that were used."""

    distance: float
    standard_error: float
    blocks: int
    rows: int


def kernel_distance(synthetic: np.ndarray, real: np.ndarray, *, seed: int, block: int = BLOCK) -> Distance:
    """Return the unbiased, block-averaged squared kernel distance between features [N, d] and [M, d].

    Both samples are shuffled by `seed` and cut into equally many disjoint blocks of at most `block` rows, at least two,
    so that there is a standard error; rows that fill no block are left out.

    Raises InputError for arrays that do not fit together, are not finite, or have fewer than four rows, and
    SettingError for blocks of fewer than two rows.
    """
    if block < 2:
        raise SettingError(f"kernel distance: a block of {block} row(s) has no pairs. Use at least 2.")
    for name, rows in (("synthetic", synthetic), ("real", real)):
        if rows.ndim != 2 or len(rows) < 4:
            raise InputError(
                f"kernel distance: the {name} features have shape {rows.shape}. Give [rows, features], 4 rows or more."
            )
        if not np.isfinite(rows).all():
            raise InputError(f"kernel distance: the {name} features are not all finite numbers.")
    if synthetic.shape[1] != real.shape[1]:
        raise InputError(
            f"kernel distance: {synthetic.shape[1]} synthetic features, but {real.shape[1]} real ones. Use one "
            "extractor for both."
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


def in_units_of(reference: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return features [N, d] with the reference's mean at zero and its mean squared length, divided by d, at one.

    One number scales all features: a feature that hardly varies in the reference (the margin of a digit, always black)
    is not blown up. With it the kernel's constant means the same for every extractor.
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
    """Return the kernel distance between each set of synthetic images and real ones, all uint8 [N, C, H, W].

    At most `sample` images of each set are drawn by `seed` and read. Features are in units of the real ones, which pass
    the extractor once. Raises what `kernel_distance` raises, and InputError for images of different shapes.
    """
    for images in synthetic.values():
        if images.shape[1:] != real.shape[1:]:
            raise InputError(
                f"Synthetic images of shape {images.shape[1:]} cannot be compared with real ones of {real.shape[1:]}."
            )

    def features(images: Rows, name: str) -> np.ndarray:
        return extractor.features(np.asarray(images[chosen(len(images), sample, seed, name)]))

    raw = features(real, "real")
    reference = in_units_of(raw, raw)
    return {
        name: kernel_distance(in_units_of(raw, features(images, "synthetic")), reference, seed=seed)
        for name, images in synthetic.items()
    }


def chosen(count: int, sample: int, seed: int, name: str) -> np.ndarray:
    """Return at most `sample` of `count` row numbers, ascending, drawn by (seed, name)."""
    order = numpy_generator(seed, f"distance sample {name}").permutation(count)
    return np.sort(order[:sample])


def scattering_extractor(channels: int, device: torch.device | str = "cpu") -> Extractor:
    """Return a fixed extractor without weights and without data: 500 projected log scattering coefficients.

    Images of a side above 32 are reduced to 32x32 by averaging, so that memory is bounded and a figure is about shapes
    rather than resolution. The same images have the same features in every run.
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


def columns_extractor() -> Extractor:
    """Return the extractor of a table: its columns as they are, float32 [N, d]."""
    return Extractor("columns", lambda rows: rows)
