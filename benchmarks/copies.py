"""Students of votes by how their teachers learn: from deformed copies, too, or under other statistics.

    python benchmarks/copies.py [copies | statistics] [--root FOLDER] [--work FOLDER] [--repeats 5] [--data digits …]

Scattering features as in the presets, under current statistics. `terrine.planning` chooses the number of ridge teachers
for the records and ε = 1, 2 and 6 (δ = 1e-5). They answer 10,000 synthetic queries by noisy histograms with replayed
noise, drawn `--repeats` times. A linear student is judged on the test images under current statistics. Compared are no
copies and four, or teachers under current statistics and halfway to the queries', all else the same. The size of the
deformations, and a penalty that grows with the number of copies, were chosen on training records held out of MNIST,
digits, PneumoniaMNIST and CIFAR-10 in grey; halfway, on such records of MNIST. The data are public benchmarks; nothing
is charged. Figures are kept in `--work`.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
from cells import KEPT, Cells, common_options, datasets, heading, row, spread

import terrine as tr
from terrine.aggregation.votes import count_votes
from terrine.heads import predict
from terrine.models.backbone import features_in_batches
from terrine.planning import plan
from terrine.privacy.noise import ReplayNoise
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit

DELTA, QUERIES, BATCH = 1e-5, 10_000, 500
EPSILONS = (1, 2, 6)
TEACHERS = {
    "copies": {"no copies": {"ridge": 0.1}, "four copies": {"ridge": 0.1, "copies": 4}},
    "statistics": {name: {"ridge": 0.1, "statistics": name} for name in ("current", "halfway")},
}
ROUND = {"rotation": 180, "shift": 0.07}
DATA = {  # the source, features, and what leaves an image the same where that is not what leaves a digit one
    "digits": ("digits", 80, None),
    "PneumoniaMNIST": ("pneumoniamnist", 200, None),
    "blood cells": ("bloodmnist", 100, ROUND),
    "MNIST": ("mnist", 200, None),
    "Fashion-MNIST": ("fashion_mnist", 200, None),
}


class Study:
    """A dataset, unrelated queries, and a backbone fitted only to these."""

    def __init__(self, name: str, root: Path) -> None:
        source, features, deformations = DATA[name]
        self.data = tr.load_dataset(source, **({} if source == "digits" else {"root": root}))
        self.queries = tr.draw({"dead_leaves": 1, "stylegan": 1}, count=QUERIES, like=self.data)
        made = {"projection": features, "invariance": True}
        self.moved = {} if deformations is None else {"deformations": deformations}
        self.backbone = tr.Scattering(**made, **self.moved).fit(self.queries)
        count = len(self.data.test_images)
        order = np.random.default_rng(0).permutation(count)
        self.seen = self._features(self.queries.inputs, self.queries.batches)
        self.test = self._features(self.data.test_images, np.array_split(order, max(1, count // BATCH)))

    def _features(self, images: np.ndarray, batches: list[np.ndarray]) -> np.ndarray:
        return features_in_batches(self.backbone, images, batches, "current")

    def accuracies(self, teachers: dict[str, Any], epsilon: float, repeats: int) -> dict[str, list[float]]:
        """Accuracy of the student, a number for each draw of the noise."""
        asked = {"classes": self.data.classes, "epsilon": epsilon, "delta": DELTA, "queries": QUERIES}
        planned = plan(self.data.records, **asked)
        parts = tr.partition(self.data, teachers=planned.teachers, seed=0)
        settings = teachers | (self.moved if "copies" in teachers else {})
        votes = tr.LinearTeachers(**settings).fit(self.data, parts, self.backbone).vote(self.queries)
        counts, found = count_votes(votes.values, self.data.classes), []
        for seed in range(repeats):
            noisy = counts + ReplayNoise(seed).gaussian(counts.shape, planned.sigma)
            head = fit(self.seen, histogram_answers(noisy, planned.teachers, planned.sigma), seed=0)
            found.append(float((predict(head, self.test).argmax(axis=1) == self.data.test_labels).mean()))
        return {"accuracy": found}


def main() -> None:
    """Measure what is not known yet, and print the table."""
    parser = common_options(__doc__, root=datasets(), work=KEPT, repeats=5)
    parser.add_argument("table", choices=list(TEACHERS), nargs="?", default="copies")
    parser.add_argument("--data", choices=list(DATA), nargs="+", default=list(DATA))
    options = parser.parse_args()
    cells = Cells(options.work / "copies.jsonl")
    choices = TEACHERS[options.table]
    heading("data", *(f"{choice}, ε = {epsilon}" for epsilon in EPSILONS for choice in choices))
    for name in options.data:
        study, texts = functools.cache(lambda name=name: Study(name, options.root)), []
        for epsilon in EPSILONS:
            for choice, teachers in choices.items():

                def made(study=study, teachers=teachers, epsilon=epsilon) -> dict[str, list[float]]:
                    return study().accuracies(teachers, epsilon, options.repeats)

                found = cells.get(f"{name}, {choice}, epsilon {epsilon}, {options.repeats}", made)
                texts.append(spread(found["accuracy"]))
        row(name, *texts)


if __name__ == "__main__":
    main()
