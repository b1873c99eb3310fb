"""Moments and gradients beside one another: accuracy by budget, as the presets have it.

    python -m benchmarks.sums [--root FOLDER] [--work FOLDER] [--repeats 5] [--data digits MNIST …]
    python -m benchmarks.sums --compare     # at the add/remove ε of published figures: docs/results/comparison.md

For digits, MNIST, PneumoniaMNIST, blood cells and, where ROOT has FashionMNIST/raw, Fashion-MNIST, and where
ROOT/cifar10_jpeg has its class folders, a JPEG copy of CIFAR-10, features are made as in the presets terrine-mnist-…,
terrine-blood-… and terrine-cifar10-… (with ImageNet weights, where the folder weights beside the one of datasets has
their file), and both mechanisms are released at ε = 1, 2 and 6 (δ = 1e-5) with replayed noise, `--repeats` times. ε is
that of replacing a record; with `--compare` it is that of adding or removing one, as in other papers. For
blood cells, a tenth of the budget goes to moments that images are normalised by; their noise is drawn once a budget.
Without noise: ridge on the same features. Features and figures are cached in `--work`. ImageNet weights give 1,280
features; if a name ends in a number of axes, they are projected on that number of principal axes of the synthetic
images' features.
"""

import argparse
import functools
from pathlib import Path
from typing import Any

import numpy as np

import terrine as tr
from benchmarks.cells import KEPT, Cells, common_options, datasets, heading, row, spread
from benchmarks.comparison import PUBLISHED, comparison_columns, comparison_rows, store
from benchmarks.features import kept_features, sums_budget, vectors_of
from terrine.aggregation.records import Records
from terrine.aggregation.sums import Sums
from terrine.privacy.accounting.events import compose
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean

DELTA = 1e-5
EPSILONS = (1, 2, 6)
ALMOST_ENDLESS = 1e6
KINDS: tuple[Sums, ...] = (tr.Moments(), tr.Gradients())
BLOOD = {"size": 28, "channels": 3, "public_benchmark": False}
"""Settings of blood cells: any file of BloodMNIST's form, official or not."""
ROUND = {"rotation": 180, "shift": 0.07}
WEIGHTS = datasets().parent / "weights" / "mobilenetv2_100_imagenet.safetensors"


def _scattering(projection: int, **settings: Any) -> tr.Scattering:
    return tr.Scattering(projection=projection, invariance=True, **settings)


def _imagenet(**settings: bool) -> tr.Timm:
    return tr.Timm(architecture="mobilenetv2_100", weights=WEIGHTS, from_tensorflow=True, enlarge=128, **settings)


CELLS: dict[str, tuple[str, dict[str, Any], tr.Architecture, float]] = {
    # the source and its settings, the backbone, and the share of the budget for moments to normalise by
    "digits": ("digits", {}, _scattering(200), 0.0),
    "blood cells": ("bloodmnist", BLOOD, _scattering(100, deformations=ROUND), 0.1),
    "MNIST": ("mnist", {}, _scattering(400), 0.0),
    "PneumoniaMNIST": ("pneumoniamnist", {}, _scattering(400), 0.0),
    "Fashion-MNIST": ("fashion_mnist", {}, _scattering(400), 0.0),
    "CIFAR-10 (JPEG copy), 500 features": ("cifar10", {}, tr.Patches(projection=500), 0.0),
    "CIFAR-10 (JPEG copy), 1,000 features": ("cifar10", {}, tr.Patches(projection=1000), 0.0),
    "CIFAR-10 (JPEG copy), ImageNet weights": ("cifar10", {}, _imagenet(), 0.0),
    "blood cells, ImageNet weights, all levels": (
        "bloodmnist",
        BLOOD,
        _imagenet(levels=True, mirrored=True),
        0.0,
    ),
    "CIFAR-10 (JPEG copy), ImageNet weights, all levels": ("cifar10", {}, _imagenet(levels=True, mirrored=True), 0.0),
}
CELLS["CIFAR-10 (JPEG copy), ResNet10 on images of programs"] = (
    "cifar10",
    {},
    tr.ResNetLevels(weights=WEIGHTS.with_name("colour.safetensors"), projection=1000),
    0.0,
)
CELLS |= {f"{name}, 400 axes": CELLS[name] for name in CELLS if name.endswith("weights")}

COMPARED = {
    "mnist": {"MNIST": "gradients"},
    "fashion-mnist": {"Fashion-MNIST": "gradients"},
    "blood": {"blood cells": "gradients"},
    "pneumonia": {"PneumoniaMNIST": "gradients"},
    "cifar-10": {
        "CIFAR-10 (JPEG copy), 1,000 features": "gradients, patches of synthetic images",
        "CIFAR-10 (JPEG copy), ResNet10 on images of programs": "gradients, ResNet10 on images of programs",
    },
}
"""Rows by table of docs/results/comparison.md, the quickest first."""


def _load(source: str, settings: dict[str, Any], root: Path) -> tr.Dataset:
    if source == "cifar10":
        return tr.load_dataset("folder", path=root / "cifar10_jpeg", size=32, channels=3)
    return tr.load_dataset(source, **settings, **({} if source == "digits" else {"root": root}))


def figures(
    name: str, kind: Sums | None, epsilon: float, seed: int, root: Path, work: Path, added: bool
) -> dict[str, float]:
    """Return the accuracy of one draw of the noise, and ε under both relations; without `kind`, without noise."""
    if kind is None:
        records, *test = vectors(name, root, work)
        return {"accuracy": right(KINDS[0].head(_without_noise(records), ALMOST_ENDLESS), *test)}
    mean = ClippedMean.for_share(share, epsilon, DELTA) if (share := CELLS[name][3]) else None
    mu, *epsilons = sums_budget(kind, epsilon, DELTA, compose() if mean is None else mean.event, added=added)
    records, *test = vectors(name, root, work, mean)
    found = right(kind.head(kind.release(records, mu, ReplayNoise(seed)), mu), *test)
    return {"accuracy": found, "added": epsilons[0], "replaced": epsilons[1]}


@functools.lru_cache(2)
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


def there(name: str, root: Path) -> bool:
    """Return whether the files of a row are there."""
    folder = {"cifar10": "cifar10_jpeg", "fashion_mnist": "FashionMNIST"}.get(CELLS[name][0], "")
    weights = getattr(CELLS[name][2], "weights", None)
    return (root / folder).is_dir() and (weights is None or Path(weights).is_file())


def compare(cells: Cells, options: argparse.Namespace) -> None:
    """Measure gradients at the add/remove ε of published figures; write docs/measurements/comparison.json."""
    for table, names in COMPARED.items():
        rows = []
        for name, label in names.items():
            if name in options.data and there(name, options.root):
                draws = [
                    [
                        _cell(cells, name, KINDS[1], epsilon, seed, options, added=True)
                        for seed in range(options.repeats)
                    ]
                    for epsilon in PUBLISHED
                ]
                rows += comparison_rows(label, draws)
        if rows:
            store(
                f"comparison/{table}",
                comparison_columns(PUBLISHED),
                rows,
                command="python -m benchmarks.sums --compare",
                seeds=options.repeats,
                spread="standard deviation over draws of the noise",
            )


def _cell(
    cells: Cells, name: str, kind: Sums | None, epsilon: float, seed: int, options: argparse.Namespace, *, added: bool
) -> dict[str, float]:
    key = f"{name} | {kind.mechanism if kind else 'no noise'} | {epsilon:g} {'added' if added else 'replaced'} | {seed}"
    return cells.get(key, lambda: figures(name, kind, epsilon, seed, options.root, options.work, added))


def main() -> None:
    """Measure what is not known yet, and print the table."""
    parser = common_options(__doc__, root=datasets(), work=KEPT / "sums", repeats=5)
    parser.add_argument("--data", choices=list(CELLS), nargs="+", default=list(CELLS))
    parser.add_argument("--compare", action="store_true", help="at the ε of published figures")
    options = parser.parse_args()
    cells = Cells(options.work / "cells.jsonl")
    if options.compare:
        return compare(cells, options)
    heading("data", *(f"{kind.mechanism} {epsilon}" for kind in KINDS for epsilon in EPSILONS), "no noise")
    for name in options.data:
        if there(name, options.root):
            found = [
                [_cell(cells, name, kind, epsilon, seed, options, added=False) for seed in range(options.repeats)]
                for kind in KINDS
                for epsilon in EPSILONS
            ]
            found.append([_cell(cells, name, None, 0.0, 0, options, added=False)])
            row(name, *(spread(cell["accuracy"] for cell in draws) for draws in found))


if __name__ == "__main__":
    main()
