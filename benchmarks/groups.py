"""Best mechanism if persons with several images are protected, by the accuracy of the served student.

    python benchmarks/groups.py [--root FOLDER] [--work FOLDER] [--repeats 2] [--data digits ...]

Records are dealt to people in one of three ways: `random`; `styled`, at random, and every person's images, test images
too, share a personal contrast, brightness and gamma; `alike`, a person's images are of one class and neighbours
along the class's first principal axis. Features, plans and budgets are those of the preset `your-own-images`: 200
features of an invariant scattering transform, 5 % of the budget for released moments, 6,000 synthetic queries, linear
teachers under current statistics, declared numbers of people. Test images are answered one by one under the released
moments, as `terrine predict` answers; of pneumonia, whose own test split has other shares of classes, they are a sixth
of the training split. Noise is replayed, and drawn `--repeats` times.

Each row is for one number of people and one number of images each. It gives accuracies at ε = 1, 2, 4 and 8, means over
the three ways and all draws. It also counts the cells (a way and an ε) in which the choice of `auto`
(`terrine.planning`) is within two points of the best. Cells that a run would refuse, because the signal is too weak,
are not counted. Figures are cached in `--work`. CIFAR-10 needs its class folders in ROOT/cifar10_jpeg.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import KEPT, Cells, common_options, datasets, heading, row
from features import vectors_of

import terrine as tr
from terrine.aggregation.sums import Sums, mu_left
from terrine.aggregation.votes import count_votes
from terrine.data.partition import iid
from terrine.heads import predict
from terrine.models.backbone import as_float
from terrine.models.released_statistics import bound_for, statistics_from, unit_vectors
from terrine.planning import QUERIES, advise, plan
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit
from terrine.teachers.linear import train_heads, vote
from terrine.teachers.records import record_batches

DELTA, MOMENTS, FEATURES, TESTED, CLOSE = 1e-5, 0.05, 200, 1_500, 0.02
EPSILONS = (1, 2, 4, 8)
SUMS: dict[str, Sums] = {"moments": tr.Moments(), "gradients": tr.Gradients()}
DATA: dict[str, tuple[tuple[str, dict[str, Any]], Any, list[tuple[int, int]]]] = {
    # source; which class its classes become, None: all stay; how many people with how many images each
    "digits": (("digits", {}), None, [(450, 3), (270, 5), (150, 9), (100, 14)]),
    "MNIST": (
        ("mnist", {}),
        None,
        [(300, 3), (2_000, 3), (500, 5), (222, 9), (150, 20), (100, 40)],
    ),
    "MNIST, odd or even": (
        ("mnist", {}),
        np.arange(10) % 2,
        [(1_000, 3), (400, 5), (150, 9), (500, 9), (300, 20), (100, 40)],
    ),
    "blood cells": (
        ("npz", {"path": "pbc-blood/blood_28.npz", "channels": 3}),
        None,
        [(1_000, 3), (500, 5), (222, 9), (300, 20), (100, 40)],
    ),
    "pneumonia": (
        ("pneumoniamnist", {}),
        None,
        [(800, 3), (300, 5), (150, 9), (200, 20), (100, 40)],
    ),
    "CIFAR-10 (JPEG copy), animals": (
        ("folder", {"path": "cifar10_jpeg", "size": 32, "channels": 3}),
        np.isin(np.arange(10), (2, 3, 4, 5, 6, 7)).astype(int),
        [(1_000, 3), (500, 5), (222, 9), (300, 20), (100, 40)],
    ),
}
PEOPLE = ("random", "styled", "alike")
MECHANISMS = ("votes", *SUMS)


def _load(name: str, root: Path) -> tr.Dataset:
    """Return a benchmark, its classes merged as `DATA` has it."""
    (source, settings), merged, _ = DATA[name]
    given = {key: root / value if key == "path" else value for key, value in settings.items()}
    if source not in ("digits", "npz", "folder"):
        given["root"] = root
    data = tr.load_dataset(source, **{**({} if source == "digits" else {"size": 28}), **given})
    if merged is None:
        return data
    names = tuple(map(str, range(merged.max() + 1)))
    labels = {part: merged[getattr(data, part)] for part in ("train_labels", "test_labels")}
    return dataclasses.replace(data, class_names=names, **labels)


class Study:
    """A benchmark, its queries, and a backbone fitted only to these."""

    def __init__(self, name: str, root: Path) -> None:
        self.data = _load(name, root)
        queries = tr.draw({"dead_leaves": 1, "stylegan": 1}, count=QUERIES, like=self.data)
        deformed = {"rotation": 30, "shift": 0.1}
        backbone = tr.Scattering(projection=FEATURES, invariance=True, deformations=deformed).fit(queries)
        self.backbone, self.projection = backbone, backbone.network.projection.numpy()
        layer = backbone.network.standardise
        self.public = layer.running_mean.numpy(), layer.running_var.numpy() + layer.eps
        rows = self.coefficients(queries.inputs)
        self.asked = self.in_batches(rows, queries.batches)
        self.queries = self.features(rows, *self.public)
        drawn = np.random.default_rng(0).permutation(len(self.data.test_labels))[:TESTED]
        self.test, self.test_labels = np.asarray(self.data.test_images)[drawn], self.data.test_labels[drawn]
        order = np.random.default_rng(1).permutation(self.data.records)[:20_000]
        images, labels = np.asarray(self.data.train_images)[order], self.data.train_labels[order]
        if name == "pneumonia":  # its own test split has other shares of classes
            held, order = np.split(np.arange(len(labels)), [len(labels) // 6])
            self.test, self.test_labels, images, labels = images[held], labels[held], images[order], labels[order]
        self.train, self.labels = images, labels

    @torch.no_grad()
    def coefficients(self, images: np.ndarray) -> np.ndarray:
        """Return the backbone's logarithmic coefficients of images, which its batch normalisation standardises."""
        parts = (as_float(torch.from_numpy(images[first : first + 64])) for first in range(0, len(images), 64))
        return np.concatenate([self.backbone.network.described(part).numpy() for part in parts])

    def features(self, rows: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Return the features of coefficients under these statistics."""
        return ((rows - mean) / np.sqrt(variance)) @ self.projection

    def in_batches(self, rows: np.ndarray, batches: list[np.ndarray]) -> np.ndarray:
        """Return the features of coefficients under the statistics of their batches; zeros of rows in none."""
        found = np.zeros((len(rows), FEATURES), np.float32)
        for batch in batches:
            own = rows[batch]
            found[batch] = self.features(own, own.mean(axis=0), own.var(axis=0) + self.backbone.network.standardise.eps)
        return found

    def people(self, kind: str, number: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return images, labels and persons of `people` people with `images` images each, and the test images."""
        records = number * size
        if kind == "alike":
            chosen = _neighbours(self.train[: 2 * records], self.labels[: 2 * records], number, size)
        else:
            chosen = np.arange(records)
        images, test = self.train[chosen], self.test
        person = np.repeat(np.arange(len(chosen) // size), size)
        if kind == "styled":
            images, test = _styled(images, person, 0), _styled(test, np.arange(len(test)), 1)
        return images, self.labels[chosen], person, test

    def accuracies(self, kind: str, number: int, size: int, repeats: int) -> dict[str, list[float]]:
        """Return the accuracy as served for each `mechanism ε`, a list over draws of the noise."""
        images, labels, person, test = self.people(kind, number, size)
        number = int(person[-1]) + 1  # a small set may have fewer
        classes, found = self.data.classes, {}
        rows, tested = self.coefficients(images), self.coefficients(test)
        # Vectors of moments shrink with the bound; so do their means.
        whole = np.concatenate(list(unit_vectors(self.backbone, images, person, 1.0)))
        counted: dict[int, tuple[np.ndarray, int]] = {}
        for epsilon in EPSILONS:
            moments = ClippedMean.for_share(MOMENTS, epsilon, DELTA)
            bound = bound_for(self.backbone, number, moments.noise_multiplier)
            about = {"classes": classes, "epsilon": epsilon, "delta": DELTA, "unit": "group"}
            planned = plan(number, moments=MOMENTS, **about)
            if planned.teachers not in counted:
                teacher = iid(len(person), planned.teachers, groups=person, seed=1)
                own = self.in_batches(rows, record_batches(teacher, 500, least=2))
                learnt = np.flatnonzero(np.bincount(teacher, minlength=planned.teachers) > 1).tolist()
                heads = train_heads(own, labels, teacher, learnt, classes, tr.LinearTeachers(), seed=0)
                counted[planned.teachers] = count_votes(vote(heads, self.asked), classes), len(learnt)
            counts, voting = counted[planned.teachers]
            mu = mu_left(epsilon, DELTA, moments.event)
            for seed in range(repeats):
                noise = ReplayNoise(seed)
                released = moments.mean(moments.release([whole / bound], noise))
                statistics = statistics_from(self.backbone, *released, bound)
                stored = statistics["mean"], statistics["variance"] + self.backbone.network.standardise.eps
                served = self.features(tested, *stored)
                kept = {"queries": self.queries, "train": self.features(rows, *stored), "labels": labels}
                summed, vectors, _ = vectors_of(kept | {"test": served, "test_labels": self.test_labels}, person)
                said = {name: vectors @ kind.head(kind.release(summed, mu, noise), mu) for name, kind in SUMS.items()}
                noisy = counts + noise.gaussian(counts.shape, planned.sigma)
                head = fit(self.asked, histogram_answers(noisy, voting, planned.sigma), 0.5, seed=0)
                said["votes"] = predict(head, served)
                said["votes in batches"] = predict(head, self.in_batches(tested, [np.arange(len(tested))]))
                for name, scores in said.items():
                    right = float((scores.argmax(axis=1) == self.test_labels).mean())
                    found.setdefault(f"{name} {epsilon}", []).append(right)
        return found


def _styled(images: np.ndarray, person: np.ndarray, seed: int) -> np.ndarray:
    """Return images under their person's contrast (0.5 to 1), brightness and gamma (1/2 to 2)."""
    drawn = np.random.default_rng(seed).uniform(size=(3, person.max() + 1))[:, person].reshape(3, -1, 1, 1, 1)
    contrast, gamma = 0.5 + 0.5 * drawn[0], 4.0 ** (drawn[2] - 0.5)
    seen = contrast * (images / 255.0) ** gamma + (1 - contrast) * drawn[1]
    return np.rint(255 * seen).astype(np.uint8)


def _neighbours(images: np.ndarray, labels: np.ndarray, number: int, size: int) -> np.ndarray:
    """Return the rows of `people` people of one class each: neighbours along the first principal axis of the class."""
    found = []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        pixels = images[own].reshape(len(own), -1).astype(np.float64)
        axis = np.linalg.svd(pixels - pixels.mean(axis=0), full_matrices=False)[2][0]
        ordered = own[np.argsort(pixels @ axis, kind="stable")]
        found += np.array_split(ordered[: len(own) // size * size], max(1, len(own) // size))
    found = [part for part in found if len(part) == size]
    drawn = np.random.default_rng(2).permutation(len(found))[:number]
    return np.concatenate([found[place] for place in drawn])


def main() -> None:
    """Measure what is not known yet, and print the table."""
    parser = common_options(__doc__, root=datasets(), work=KEPT / "groups", repeats=2)
    parser.add_argument("--data", choices=list(DATA), nargs="+", default=list(DATA))
    options = parser.parse_args()
    cells = Cells(options.work / "accuracies.jsonl")
    heading("data", "classes", "people", "images of each", *(f"{each} %" for each in MECHANISMS), "auto is close")
    close: list[bool] = []
    for name in options.data:
        if name.startswith("CIFAR") and not (options.root / "cifar10_jpeg").is_dir():
            continue
        study = functools.cache(functools.partial(Study, name, options.root))
        for number, size in DATA[name][2]:
            found = []
            for kind in PEOPLE:

                def made(study=study, kind=kind, number=number, size=size) -> dict[str, Any]:
                    about = {"classes": study().data.classes}
                    return about | study().accuracies(kind, number, size, options.repeats)

                found.append(cells.get(f"{name} | {kind} | {number} | {size} | {options.repeats}", made))
            classes, own = found[0]["classes"], []
            for epsilon in EPSILONS:
                advice = advise(number, unit="group", classes=classes, features=FEATURES, epsilon=epsilon, delta=DELTA)
                for one in found if advice.useful else ():
                    means = {each: np.mean(one[f"{each} {epsilon}"]) for each in MECHANISMS}
                    taken = "votes" if advice.mechanism == "histogram" else advice.mechanism
                    own.append(means[taken] >= max(means.values()) - CLOSE)
            shown = [" / ".join(_mean(found, each, epsilon) for epsilon in EPSILONS) for each in MECHANISMS]
            row(name, classes, f"{number:,}", size, *shown, f"{sum(own)} of {len(own)}")
            close += own
    print(f"\nWithin two points of the best in {sum(close)} of {len(close)} cells, {np.mean(close):.0%}.")


def _mean(found: list[dict[str, Any]], mechanism: str, epsilon: int) -> str:
    return f"{100 * np.mean([one[f'{mechanism} {epsilon}'] for one in found]):.0f}"


if __name__ == "__main__":
    main()
