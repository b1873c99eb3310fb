"""Moments and gradients beside one another: accuracy by budget, as the presets have it.

    python benchmarks/sums.py [--root FOLDER] [--work FOLDER] [--repeats 5]

For digits, MNIST, blood cells and, where ROOT/cifar10_jpeg has its class folders, a JPEG copy of CIFAR-10, features are
made as in the presets terrine-mnist-…, terrine-blood-… and terrine-cifar10-…, and both mechanisms are released at ε = 1,
2 and 6 (δ = 1e-5, one record exchanged) with replayed noise, `--repeats` times. Of blood cells a tenth of the budget goes to moments that images are normalised by; their noise is drawn once a budget.
Without noise: ridge on the same features. Figures are kept in `--work`; what is there is not made again.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
from cells import KEPT, Cells, common_options, datasets, spread

import terrine as tr
from terrine.aggregation.records import Records, Whitening
from terrine.aggregation.sums import Sums, mu_left
from terrine.models.backbone import features_in_batches
from terrine.models.moments import bound_for, set_statistics, statistics_from, unit_vectors
from terrine.models.one_by_one import features_one_by_one
from terrine.privacy.accounting.events import compose
from terrine.privacy.clipped_mean import ClippedMean
from terrine.privacy.noise import ReplayNoise

DELTA = 1e-5
EPSILONS = (1, 2, 6)
ALMOST_ENDLESS = 1e6
KINDS: tuple[Sums, ...] = (tr.Moments(), tr.Gradients())
ROUND = {"rotation": 180, "shift": 0.07}


def _scattering(projection: int, **settings: Any) -> tr.Scattering:
    return tr.Scattering(projection=projection, invariance=True, **settings)


CELLS: dict[str, tuple[str, dict[str, Any], tr.Architecture, float]] = {
    # the source and its settings, the backbone, and the share of the budget for moments to normalise by
    "digits": ("digits", {}, _scattering(200), 0.0),
    "blood cells": ("bloodmnist", {"size": 28, "channels": 3}, _scattering(100, deformations=ROUND), 0.1),
    "MNIST": ("mnist", {}, _scattering(400), 0.0),
    "CIFAR-10 (JPEG copy), 500 features": ("cifar10", {}, tr.Patches(projection=500), 0.0),
    "CIFAR-10 (JPEG copy), 1,000 features": ("cifar10", {}, tr.Patches(projection=1000), 0.0),
}


def _load(source: str, settings: dict[str, Any], root: Path) -> tr.Dataset:
    if source == "cifar10":
        return tr.load_dataset("folder", path=root / "cifar10_jpeg", size=32, channels=3)
    return tr.load_dataset(source, **settings, **({} if source == "digits" else {"root": root}))


def accuracies(name: str, root: Path, repeats: int) -> dict[str, list[float]]:
    """Accuracy for each `mechanism ε`, a list over draws of the noise, and `none` without any."""
    source, settings, architecture, share = CELLS[name]
    data = _load(source, settings, root)
    queries = tr.draw({"dead_leaves": 1, "stylegan": 1}, count=6000, like=data)
    backbone = architecture.fit(queries)
    whitening = Whitening.of(features_in_batches(backbone, queries.inputs, queries.batches, "original", "cpu"))
    own, found = _features(backbone, data, whitening), {}
    best = KINDS[0].head(_without_noise(own[0]), ALMOST_ENDLESS)
    found["none"] = [_right(best, *own[1:], data)]
    for epsilon in EPSILONS:
        before = compose()
        if share:
            mean = ClippedMean.for_share(share, epsilon, DELTA)
            bound, before = bound_for(backbone, None, mean.noise_multiplier), mean.event
            vectors = unit_vectors(backbone, data.train_images, np.arange(data.records), bound)
            released = mean.mean(mean.release(vectors, ReplayNoise(0)))
            fitted = architecture.fit(queries)
            set_statistics(fitted, statistics_from(backbone, *released, bound))
            own = _features(fitted, data, whitening)
        mu = mu_left(epsilon, DELTA, before)
        for kind in KINDS:
            heads = [kind.head(kind.release(own[0], mu, ReplayNoise(seed)), mu) for seed in range(repeats)]
            found[f"{kind.mechanism} {epsilon}"] = [_right(head, *own[1:], data) for head in heads]
    return found


def _features(backbone: tr.Backbone, data: tr.Dataset, whitening: Whitening) -> tuple[Records, np.ndarray]:
    train, test = (
        np.concatenate(list(features_one_by_one(backbone, images, whitening.vectors)))
        for images in (data.train_images, data.test_images)
    )
    return Records.of(train, data.train_labels, np.arange(len(train)), data.classes), test


def _without_noise(records: Records) -> dict[str, np.ndarray]:
    vectors = records.vectors.astype(np.float64)
    return {"second": vectors.T @ vectors, "labels": vectors.T @ np.eye(records.classes)[records.labels]}


def _right(head: np.ndarray, test: np.ndarray, data: tr.Dataset) -> float:
    return float(((test @ head).argmax(axis=1) == data.test_labels).mean())


def main() -> None:
    """Measure what is not known yet, and print the table."""
    options = common_options(__doc__, root=datasets(), work=KEPT / "sums", repeats=5).parse_args()
    cells = Cells(options.work / "accuracies.jsonl")
    columns = [f"{kind.mechanism} {epsilon}" for kind in KINDS for epsilon in EPSILONS]
    print(f"| data | {' | '.join(columns)} | no noise |")
    print("|---" * (len(columns) + 2) + "|")
    for name in CELLS:
        if name.startswith("CIFAR") and not (options.root / "cifar10_jpeg").is_dir():
            continue
        found = cells.get(
            f"{name} {options.repeats}", functools.partial(accuracies, name, options.root, options.repeats)
        )
        print(f"| {name} | {' | '.join(spread(found[column]) for column in columns)} | {spread(found['none'])} |")


if __name__ == "__main__":
    main()
