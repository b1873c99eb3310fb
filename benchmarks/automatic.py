"""Best number of teachers by records, budget and unit: the source of the constants of `terrine.planning`.

    python benchmarks/automatic.py [--root FOLDER] [--work FOLDER] [--repeats 3]

Stand-ins (digits, MNIST, blood cells, pneumonia and, where ROOT/cifar10_jpeg has its class folders, a JPEG copy of
CIFAR-10) are cut to n records, or MNIST is dealt to groups; for numbers of teachers that grow by √2, all vote once on
6,000 queries, and for each ε and repeat noise is drawn (replayed) and a linear student is fitted. The first table
gives, for each stand-in and ε, the accuracy at the tried number of teachers nearest to the rule's, and the best over
all tried numbers. The second tries other constants instead of `terrine.planning.AMPLE`: for each, it counts the budgets
(without groups) whose accuracy is within a point of the best. Figures are cached in `--work`.
"""

import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import KEPT, Cells, common_options, datasets, heading, row, spread

import terrine as tr
from terrine.aggregation.votes import count_votes
from terrine.heads import predict
from terrine.models.backbone import features_in_batches
from terrine.planning import QUERIES, UNITS_EACH, plan, signal
from terrine.privacy.accounting.gaussian import mu_of
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit

CPU = torch.device("cpu")
DELTA = 1e-5
UPRIGHT, ROUND = {"rotation": 15, "shift": 0.1}, {"rotation": 180, "shift": 0.07}
SOURCES: dict[str, dict[str, Any]] = {
    "digits": {},
    "mnist": {"root": "."},
    "bloodmnist": {"root": ".", "size": 28, "channels": 3},
    "pneumoniamnist": {"root": ".", "size": 28},
    "cifar10": {},
}
CLASSES = {"pneumoniamnist": 2, "bloodmnist": 8}
STAND_INS: list[tuple[str, int, int, list[int], list[float]]] = [
    # name, records, groups, teachers, ε
    ("pneumoniamnist", 4_700, 0, [50, 70, 100, 140, 200, 280, 400, 560, 800], [1, 2, 4, 8]),
    ("digits", 1_400, 0, [140, 200, 280, 400, 466], [2, 4, 8]),
    ("bloodmnist", 11_900, 0, [200, 280, 400, 560, 800, 1130, 1600], [1, 2, 4, 8]),
    ("mnist", 12_000, 0, [200, 280, 400, 560, 800, 1130, 1600], [1, 2, 4, 8]),
    ("cifar10", 20_000, 0, [280, 400, 560, 800, 1130, 1600], [1, 2, 4, 8]),
    ("mnist", 12_000, 60, [10, 20, 30, 40, 60], [4, 8, 16, 32]),
    ("mnist", 12_000, 300, [20, 40, 80, 150, 250], [2, 4, 8]),
]
LOUD = 25.0
"""Minimum signal; below it a student would learn noise."""
CONSTANTS = (30, 40, 50, 60, 70, 80, 100)


def load(name: str, records: int, groups: int, root: Path) -> tr.Dataset:
    """A stand-in reduced to `records` training records in `groups` random groups; 0 for none."""
    settings = {key: root / value if key == "root" else value for key, value in SOURCES[name].items()}
    if name == "cifar10":
        data = tr.load_dataset("folder", path=root / "cifar10_jpeg", size=32, channels=3)
    else:
        data = tr.load_dataset(name, **settings)
    kept = np.sort(np.random.default_rng(0).permutation(data.records)[:records])
    return dataclasses.replace(
        data,
        train_images=np.asarray(data.train_images)[kept],
        train_labels=data.train_labels[kept],
        train_names=None,
        train_groups=np.random.default_rng(1).integers(0, groups, len(kept)) if groups else None,
    )


class Study:
    """A stand-in, its queries, and a backbone fitted only to these."""

    def __init__(self, name: str, records: int, groups: int, root: Path) -> None:
        self.data = load(name, records, groups, root)
        self.queries = tr.draw({"dead_leaves": 1, "stylegan": 1}, count=QUERIES, like=self.data)
        turned = ROUND if name == "bloodmnist" else UPRIGHT
        kind = tr.Scattering(projection=100, invariance=True, deformations=turned)
        self.backbone = (tr.Patches(projection=200) if name == "cifar10" else kind).fit(self.queries)
        self.asked = features_in_batches(self.backbone, self.queries.inputs, self.queries.batches, "current", CPU)
        test, self.labels = np.asarray(self.data.test_images)[:3000], self.data.test_labels[:3000]
        batches = np.array_split(np.random.default_rng(0).permutation(len(test)), max(1, round(len(test) / 500)))
        self.tested = features_in_batches(self.backbone, test, batches, "current", CPU)

    def accuracies(self, teachers: int, epsilons: list[float], repeats: int) -> dict[str, list[float]]:
        """Accuracy for each ε, a list over draws of the noise."""
        data = self.data
        parts = tr.partition(data, teachers=teachers, unit="record" if data.train_groups is None else "group")
        votes = tr.LinearTeachers(ridge=0.1).fit(data, parts, self.backbone).vote(self.queries).values
        counts = count_votes(votes, data.classes)
        found: dict[str, list[float]] = {}
        for epsilon in epsilons:
            sigma = tr.calibrate(epsilon, DELTA, QUERIES).sigma
            for seed in range(repeats):
                noisy = counts + np.random.default_rng(seed).normal(size=counts.shape) * sigma
                head = fit(self.asked, histogram_answers(noisy, teachers, sigma), 0.5, seed=0)
                right = float((predict(head, self.tested).argmax(1) == self.labels).mean())
                found.setdefault(f"{epsilon:g}", []).append(right)
        return found


def main() -> None:
    """Measure what is not known yet, and print the table."""
    options = common_options(__doc__, root=datasets(), work=KEPT / "automatic", repeats=3).parse_args()
    cells = Cells(options.work / "accuracies.jsonl")
    heading("data", "units", "ε", "teachers of the rule", "accuracy % at the nearest", "best %", "at")
    good, budgets = dict.fromkeys(CONSTANTS, 0), 0
    for name, records, groups, teachers, epsilons in STAND_INS:
        if name == "cifar10" and not (options.root / "cifar10_jpeg").is_dir():
            continue
        study = functools.cache(functools.partial(Study, name, records, groups, options.root))
        measured: dict[float, dict[int, list[float]]] = {epsilon: {} for epsilon in epsilons}
        classes = CLASSES.get(name, 10)
        for count in teachers:
            heard = [each for each in epsilons if groups or signal(count, mu_of(each, DELTA), classes) >= LOUD]

            def made(study=study, count=count, heard=heard) -> dict[str, list[float]]:
                return study().accuracies(count, heard, options.repeats)

            found = cells.get(f"{name} {records} {groups} {count} {heard} {options.repeats}", made)
            for epsilon in heard:
                measured[epsilon][count] = found[f"{epsilon:g}"]
        for epsilon, known in measured.items():
            unit = "group" if groups else "record"
            chosen = plan(groups or records, classes=classes, epsilon=epsilon, delta=DELTA, unit=unit)
            best = max(known, key=lambda count, known=known: np.mean(known[count]))
            at_nearest = nearest(known, chosen.teachers)
            rule = f"{chosen.teachers}" + ("" if chosen.useful else ", refused")
            units = f"{groups} groups of {records:,}" if groups else f"{records:,}"
            text = f"{spread(known[at_nearest])} at {at_nearest}"
            row(name, units, f"{epsilon:g}", rule, text, spread(known[best]), best)
            if not groups:
                budgets += 1
                for constant in CONSTANTS:
                    other = min(constant * classes / mu_of(epsilon, DELTA), records / UNITS_EACH[unit])
                    good[constant] += np.mean(known[nearest(known, other)]) >= np.mean(known[best]) - 0.01
    heading("constant", "within a point of the best, of budgets")
    for constant, times in good.items():
        row(constant, f"{times} of {budgets}")


def nearest(known: Iterable[int], teachers: float) -> int:
    """Return the number of teachers that was tried and is nearest."""
    return min(known, key=lambda count: abs(np.log(count / teachers)))


if __name__ == "__main__":
    main()
