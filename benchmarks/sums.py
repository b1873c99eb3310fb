"""Moments and gradients beside one another: accuracy by budget, as the presets have it.

    python benchmarks/sums.py [--root FOLDER] [--work FOLDER] [--repeats 5] [--data digits MNIST …] [--added]

For digits, MNIST, PneumoniaMNIST, blood cells and, where ROOT has FashionMNIST/raw, Fashion-MNIST, and where
ROOT/cifar10_jpeg has its class folders, a JPEG copy of CIFAR-10, features are made as in the presets terrine-mnist-…,
terrine-blood-… and terrine-cifar10-… (with ImageNet weights, where the folder weights beside the one of datasets has
their file), and both mechanisms are released at ε = 1, 2 and 6 (δ = 1e-5) with replayed noise, `--repeats` times. ε is
that of exchanging a record; with `--added` it is that of adding or removing one, which other papers state. For
blood cells, a tenth of the budget goes to moments that images are normalised by; their noise is drawn once a budget.
Without noise: ridge on the same features. Features and figures are cached in `--work`. ImageNet weights give 1,280
features; if a name ends in a number of axes, they are projected on that number of principal axes of the synthetic
images' features.
"""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
from cells import KEPT, Cells, common_options, datasets, heading, row, spread
from features import kept_features, vectors_of

import terrine as tr
from terrine.aggregation.records import Records
from terrine.aggregation.sums import Sums, mu_left
from terrine.privacy.accounting.events import compose
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean

DELTA = 1e-5
EPSILONS = (1, 2, 6)
ALMOST_ENDLESS = 1e6
KINDS: tuple[Sums, ...] = (tr.Moments(), tr.Gradients())
ROUND = {"rotation": 180, "shift": 0.07}
WEIGHTS = datasets().parent / "weights" / "mobilenetv2_100_imagenet.safetensors"


def _scattering(projection: int, **settings: Any) -> tr.Scattering:
    return tr.Scattering(projection=projection, invariance=True, **settings)


def _imagenet(**settings: bool) -> tr.Timm:
    return tr.Timm(architecture="mobilenetv2_100", weights=WEIGHTS, from_tensorflow=True, enlarge=128, **settings)


CELLS: dict[str, tuple[str, dict[str, Any], tr.Architecture, float]] = {
    # the source and its settings, the backbone, and the share of the budget for moments to normalise by
    "digits": ("digits", {}, _scattering(200), 0.0),
    "blood cells": ("bloodmnist", {"size": 28, "channels": 3}, _scattering(100, deformations=ROUND), 0.1),
    "MNIST": ("mnist", {}, _scattering(400), 0.0),
    "PneumoniaMNIST": ("pneumoniamnist", {}, _scattering(400), 0.0),
    "Fashion-MNIST": ("fashion_mnist", {}, _scattering(400), 0.0),
    "CIFAR-10 (JPEG copy), 500 features": ("cifar10", {}, tr.Patches(projection=500), 0.0),
    "CIFAR-10 (JPEG copy), 1,000 features": ("cifar10", {}, tr.Patches(projection=1000), 0.0),
    "CIFAR-10 (JPEG copy), ImageNet weights": ("cifar10", {}, _imagenet(), 0.0),
    "blood cells, ImageNet weights, all levels": (
        "bloodmnist",
        {"size": 28, "channels": 3},
        _imagenet(levels=True, mirrored=True),
        0.0,
    ),
    "CIFAR-10 (JPEG copy), ImageNet weights, all levels": ("cifar10", {}, _imagenet(levels=True, mirrored=True), 0.0),
}
CELLS |= {f"{name}, 400 axes": CELLS[name] for name in CELLS if name.endswith("weights")}


def _load(source: str, settings: dict[str, Any], root: Path) -> tr.Dataset:
    if source == "cifar10":
        return tr.load_dataset("folder", path=root / "cifar10_jpeg", size=32, channels=3)
    return tr.load_dataset(source, **settings, **({} if source == "digits" else {"root": root}))


def accuracies(name: str, root: Path, work: Path, repeats: int, added: bool) -> dict[str, list[float]]:
    """Accuracy for each `mechanism ε`, a list over draws of the noise, and `none` without any."""
    (records, *test), found = vectors(name, root, work), {}
    found["none"] = [right(KINDS[0].head(_without_noise(records), ALMOST_ENDLESS), *test)]
    for epsilon in EPSILONS:
        before, own = compose(), (records, *test)
        if share := CELLS[name][3]:
            mean = ClippedMean.for_share(share, epsilon, DELTA)
            before, own = mean.event, vectors(name, root, work, mean)
        for kind in KINDS:
            mu = mu_left(epsilon, DELTA, before)
            if added:
                mu /= math.sqrt(mu_squared(kind.schedule(1.0).event_added))
            heads = [kind.head(kind.release(own[0], mu, ReplayNoise(seed)), mu) for seed in range(repeats)]
            found[f"{kind.mechanism} {epsilon}"] = [right(head, *own[1:]) for head in heads]
    return found


def vectors(
    name: str, root: Path, work: Path, mean: ClippedMean | None = None
) -> tuple[Records, np.ndarray, np.ndarray]:
    """The records, and vectors and labels of the test images. Arguments as of `features`."""
    if not name.endswith(" axes"):
        return vectors_of(features(name, root, work, mean))
    whole, number = name.removesuffix(" axes").rsplit(", ", 1)
    kept = features(whole, root, work, mean)
    _, axes = np.linalg.eigh(np.cov(kept["queries"].T))
    axes = axes[:, ::-1][:, : int(number)]
    return vectors_of(kept | {part: kept[part] @ axes for part in ("queries", "train", "test")})


def features(name: str, root: Path, work: Path, mean: ClippedMean | None = None) -> dict[str, np.ndarray]:
    """Features of `train`, `test` and `queries`, of each image by itself, and `labels`; kept in `work`.

    mean: by which moments are released that private images are normalised by; None: by those of the queries.
    """
    source, settings, architecture, _ = CELLS[name]
    path = work / f"features {name}{'' if mean is None else f' {mean.noise_multiplier:.3f}'}.npz"
    return kept_features(lambda: _load(source, settings, root), architecture, path, mean)


def _without_noise(records: Records) -> dict[str, np.ndarray]:
    vectors = records.vectors.astype(np.float64)
    return {"second": vectors.T @ vectors, "labels": vectors.T @ np.eye(records.classes)[records.labels]}


def right(head: np.ndarray, test: np.ndarray, labels: np.ndarray) -> float:
    """The share of test images whose class a head on vectors finds."""
    return float(((test @ head).argmax(axis=1) == labels).mean())


def main() -> None:
    """Measure what is not known yet, and print the table."""
    parser = common_options(__doc__, root=datasets(), work=KEPT / "sums", repeats=5)
    parser.add_argument("--data", choices=list(CELLS), nargs="+", default=list(CELLS))
    parser.add_argument("--added", action="store_true", help="ε of adding or removing a record")
    options = parser.parse_args()
    cells = Cells(options.work / "accuracies.jsonl")
    columns = [f"{kind.mechanism} {epsilon}" for kind in KINDS for epsilon in EPSILONS]
    heading("data", *columns, "no noise")
    for name in options.data:
        folder = {"cifar10": "cifar10_jpeg", "fashion_mnist": "FashionMNIST"}.get(CELLS[name][0], "")
        if not (options.root / folder).is_dir():
            continue
        if "ImageNet weights" in name and not WEIGHTS.is_file():
            continue
        key = f"{name}{' added' * options.added} {options.repeats}"
        made = functools.partial(accuracies, name, options.root, options.work, options.repeats, options.added)
        found = cells.get(key, made)
        row(name, *(spread(found[column]) for column in [*columns, "none"]))


if __name__ == "__main__":
    main()
