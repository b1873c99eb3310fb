"""What it is worth that a projection of many features looks in the span of images', and not in sums at random.

    python benchmarks/projections.py [--root FOLDER]

Both look in 2,000 of some 12,000 directions, and learn the same from them. Sums over records (gradients, exact ε = 4 at
δ = 1e-5, replayed noise, two draws) of 200 scattering features learned on 4,000 synthetic images, judged on test
images: of drawn images of 32 x 32 whose classes differ in tint alone, in soft blotches of colour, or in stripes alone;
and of blood cells, where ROOT has them.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from cells import common_options, datasets, heading, row
from PIL import Image, ImageFilter

import terrine as tr
from terrine.aggregation.records import Records, Whitening
from terrine.aggregation.sums import Gradients, mu_left
from terrine.determinism.randomness import torch_generator
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.deformations import Deformations
from terrine.models.lda_projection import invariant_projection
from terrine.models.scattering import PROJECTION_BATCHES
from terrine.models.statistics import batch_statistics
from terrine.privacy.noise import ReplayNoise

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
SIDE, QUERIES, BATCH, SUMS = 32, 4_000, 500, 2_000
MOVES = Deformations(rotation=30, shift=0.1)


def tint(kind: int, rng: np.random.Generator) -> np.ndarray:
    """One of three tints of equal luminance on grained ground."""
    shift = np.array([(30, -15, -15), (-15, 15, -15), (-15, -15, 60)])[kind] * 0.6
    grain = Image.fromarray(np.clip(rng.normal(120, 40, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8))
    return np.asarray(grain.filter(ImageFilter.GaussianBlur(1))) + shift - shift @ [0.299, 0.587, 0.114]


def blotches(kind: int, rng: np.random.Generator) -> np.ndarray:
    """One of forty fields of soft colours, moved by up to two pixels, under grain."""
    field = np.random.default_rng(kind).integers(0, 255, (8, 8, 3)).astype(np.uint8)
    soft = np.asarray(Image.fromarray(field).resize((SIDE, SIDE), Image.Resampling.BICUBIC)).astype(float)
    return np.roll(soft, tuple(rng.integers(-2, 3, 2)), (0, 1)) * 0.5 + 60 + rng.normal(0, 25, (SIDE, SIDE, 3))


def stripes(kind: int, rng: np.random.Generator) -> np.ndarray:
    """One of four directions and two widths of stripes, of any colour and phase."""
    angle, frequency = kind % 4 * np.pi / 4 + rng.normal(0, 0.1), (0.1, 0.2)[kind // 4] * rng.uniform(0.85, 1.15)
    down, across = np.mgrid[:SIDE, :SIDE]
    wave = np.sin(2 * np.pi * frequency * (across * np.cos(angle) + down * np.sin(angle)) + rng.uniform(0, 2 * np.pi))
    return rng.normal(110, 30, (SIDE, SIDE, 3)) + 35 * wave[..., None] * rng.uniform(0.3, 1, 3)


def drawn(program, classes: int, count: int) -> Split:
    """Images of a program: `count` to learn from, a fifth of that to be judged by."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, count + count // 5)
    images = np.stack([np.clip(program(int(kind), rng), 0, 255).astype(np.uint8) for kind in labels])
    images = images.transpose(0, 3, 1, 2)
    return images[:count], labels[:count], images[count:], labels[count:]


def sets(root: Path) -> Iterator[tuple[str, Split]]:
    """Yield the sets that are there, by name."""
    yield "tints", drawn(tint, 3, 2_000)
    yield "blotches of forty kinds", drawn(blotches, 40, 6_000)
    yield "stripes", drawn(stripes, 8, 3_000)
    if (root / "pbc-blood" / "blood_28.npz").is_file():
        with np.load(root / "pbc-blood" / "blood_28.npz") as held:
            parts = [held[f"{split}_{what}"] for split in ("train", "test") for what in ("images", "labels")]
        yield (
            "blood cells",
            tuple(part.transpose(0, 3, 1, 2) if part.ndim == 4 else part.ravel().astype(np.int64) for part in parts),
        )


def sums_at_random(backbone: Backbone, queries: tr.Queries) -> None:
    """Give a backbone the projection that is learned from 2,000 sums of its features."""
    network = backbone.network
    mix = torch.randn(len(network.projection), SUMS, generator=torch_generator(0, "sums"))
    network.projection = torch.linalg.qr(mix).Q

    def mixed(images: torch.Tensor) -> torch.Tensor:
        with batch_statistics(network, "current"):
            return network(images)

    own = queries.batches[:PROJECTION_BATCHES]
    learned = invariant_projection(mixed, queries.images, own, backbone.feature_dim, seed=0, deformations=MOVES)
    network.projection = network.projection @ learned


def accuracies(split: Split) -> tuple[float, float]:
    """`accuracy` by sums at random, and in the span of images."""
    channels, size = split[0].shape[1], split[0].shape[-1]
    queries = tr.draw({"dead_leaves": 1, "stylegan": 1}, count=QUERIES, size=size, channels=channels, seed=0)
    backbone = tr.Scattering(projection=200, invariance=True, deformations=MOVES).fit(queries)
    spanned = accuracy(backbone, queries, split)
    sums_at_random(backbone, queries)
    return accuracy(backbone, queries, split), spanned


def accuracy(backbone: Backbone, queries: tr.Queries, split: Split) -> float:
    """Per cent of the test images that sums over the records are right about."""
    images, labels, test_images, test_labels = split

    def features(of: np.ndarray) -> np.ndarray:
        return features_in_batches(backbone, of, np.split(np.arange(len(of)), range(BATCH, len(of), BATCH)), "original")

    whitening = Whitening.fit(features(np.asarray(queries.images)))
    classes, seen = int(labels.max()) + 1, whitening.vectors(features(test_images)).astype(float)
    records = Records.of(whitening.vectors(features(images)), labels, np.arange(len(labels)), classes)
    mechanism, mu = Gradients(), mu_left(4, 1e-5)
    heads = [mechanism.head(mechanism.release(records, mu, ReplayNoise(seed)), mu) for seed in (0, 1)]
    return float(100 * np.mean([((seen @ head).argmax(1) == test_labels).mean() for head in heads]))


def main() -> None:
    root = common_options(__doc__, root=datasets()).parse_args().root
    torch.set_num_threads(1)
    heading("images", "sums at random", "span of images")
    for name, split in sets(root):
        row(name, *(f"{found:.1f}" for found in accuracies(split)))


if __name__ == "__main__":
    main()
