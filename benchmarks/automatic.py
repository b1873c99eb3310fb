"""How many teachers are best, by records, budget and unit: what the constants of `terrine.planning` are taken from.

    python benchmarks/automatic.py [--root FOLDER] [--work FOLDER] [--repeats 2]

Stand-ins (digits, MNIST, blood cells, pneumonia) are cut to n records, or MNIST is dealt to groups; for numbers of
teachers that double, all vote once on 6,000 queries, and for each ε and repeat noise is drawn (replayed) and a linear
student is fitted. Printed is, for each stand-in and ε, the accuracy at the number of teachers nearest to that of the
rule, and the best of all numbers that were tried. Figures are kept in `--work`; what is there is not made again.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import KEPT, Cells, common_options, datasets, heading, row, spread

import terrine as tr
from terrine.classifiers import predict
from terrine.models.backbone import features_in_batches
from terrine.planning import QUERIES, plan
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit

CPU = torch.device("cpu")
DELTA = 1e-5
UPRIGHT, ROUND = {"rotation": 15, "shift": 0.1}, {"rotation": 180, "shift": 0.07}
SOURCES: dict[str, dict[str, Any]] = {
    "digits": {},
    "mnist": {"root": "."},
    "bloodmnist": {"root": ".", "size": 28, "channels": 3},
    "pneumoniamnist": {"root": "medmnist", "size": 28},
}
STAND_INS: list[tuple[str, int, int, list[int], list[float]]] = [
    # name, records, groups, teachers, ε
    ("digits", 1_400, 0, [35, 70, 140, 280, 450], [1, 2, 4, 8]),
    ("mnist", 1_000, 0, [25, 50, 100, 200, 350], [2, 4, 8]),
    ("mnist", 3_000, 0, [50, 100, 200, 400, 800], [1, 2, 4, 8]),
    ("mnist", 12_000, 0, [100, 200, 400, 800, 1600], [1, 2, 4, 8]),
    ("mnist", 60_000, 0, [200, 400, 800, 1600], [1, 2, 4, 8]),
    ("bloodmnist", 3_000, 0, [50, 100, 200, 400, 800], [2, 4, 8]),
    ("bloodmnist", 11_900, 0, [100, 200, 400, 800, 1600], [1, 2, 4, 8]),
    ("pneumoniamnist", 4_700, 0, [25, 50, 100, 200, 400, 800], [0.5, 1, 2, 4]),
    ("mnist", 12_000, 60, [10, 20, 30, 40, 60], [4, 8, 16, 32]),
    ("mnist", 12_000, 300, [20, 40, 80, 150, 250], [2, 4, 8]),
]


def load(name: str, records: int, groups: int, root: Path) -> tr.Dataset:
    """A stand-in cut to so many training records, dealt to so many groups at random; 0 for none."""
    settings = {key: root / value if key == "root" else value for key, value in SOURCES[name].items()}
    data = tr.load_dataset(name, **settings)
    kept = np.sort(np.random.default_rng(0).permutation(data.records)[:records])
    return dataclasses.replace(
        data,
        train_images=np.asarray(data.train_images)[kept],
        train_labels=data.train_labels[kept],
        train_names=None,
        train_groups=np.random.default_rng(1).integers(0, groups, len(kept)) if groups else None,
    )


def accuracies(
    read: Callable[[], tr.Dataset], teachers: list[int], epsilons: list[float], repeats: int
) -> dict[str, Any]:
    """Accuracy for each `T ε`, a list over draws of the noise."""
    data = read()
    turned = ROUND if data.name == "bloodmnist" else UPRIGHT
    queries = tr.draw({"dead_leaves": 1, "stylegan": 1}, count=QUERIES, like=data)
    backbone = tr.Scattering(projection=100, invariance=True, deformations=turned).fit(queries)
    asked = features_in_batches(backbone, queries.inputs, queries.batches, "current", CPU)
    test, labels = np.asarray(data.test_images)[:3000], data.test_labels[:3000]
    batches = np.array_split(np.random.default_rng(0).permutation(len(test)), max(1, round(len(test) / 500)))
    tested = features_in_batches(backbone, test, batches, "current", CPU)
    found: dict[str, Any] = {}
    for count in teachers:
        parts = tr.partition(data, teachers=count, unit="record" if data.train_groups is None else "group")
        votes = tr.LinearTeachers(ridge=0.1).fit(data, parts, backbone).vote(queries).values
        counts = np.stack([(votes == label).sum(1) for label in range(data.classes)], 1)
        for epsilon in epsilons:
            sigma = tr.calibrate(epsilon, DELTA, QUERIES).sigma
            for seed in range(repeats):
                noisy = counts + np.random.default_rng(seed).normal(size=counts.shape) * sigma
                head = fit(asked, histogram_answers(noisy, count, sigma), 0.5, seed=0)
                right = float((predict(head, tested).argmax(1) == labels).mean())
                found.setdefault(f"{count} {epsilon:g}", []).append(right)
    return found


def main() -> None:
    """Measure what is not known yet, and print the table."""
    options = common_options(__doc__, root=datasets(), work=KEPT / "automatic", repeats=2).parse_args()
    cells = Cells(options.work / "accuracies.jsonl")
    heading("data", "units", "ε", "teachers of the rule", "accuracy % at the nearest", "best %", "at")
    for name, records, groups, teachers, epsilons in STAND_INS:
        key = f"{name} {records} {groups} {teachers} {epsilons} {options.repeats}"
        data = functools.partial(load, name, records, groups, options.root)
        found = cells.get(key, functools.partial(accuracies, data, teachers, epsilons, options.repeats))
        classes = {"pneumoniamnist": 2, "bloodmnist": 8}.get(name, 10)
        for epsilon in epsilons:
            unit = "group" if groups else "record"
            chosen = plan(groups or records, classes=classes, epsilon=epsilon, delta=DELTA, unit=unit)
            measured = {count: found[f"{count} {epsilon:g}"] for count in teachers}
            nearest = min(teachers, key=lambda count: abs(np.log(count / chosen.teachers)))
            best = max(teachers, key=lambda count: np.mean(measured[count]))
            rule = f"{chosen.teachers}" + ("" if chosen.useful else ", refused")
            units = f"{groups} groups of {records:,}" if groups else f"{records:,}"
            at_nearest = f"{spread(measured[nearest])} at {nearest}"
            row(name, units, f"{epsilon:g}", rule, at_nearest, spread(measured[best]), best)


if __name__ == "__main__":
    main()
