"""One table for all: what is learnt from the same vectors of the same records, by who trusts whom with what.

    pip install opacus
    python -m benchmarks.rivals [--root FOLDER] [--work FOLDER] [--data digits MNIST …] [--parties 0 20 200 1000]

Every method reads the vectors that `aggregation.mechanism: gradients` sums (benchmarks/sums.py, public statistics), and
has ε = 1, 2 and 6 at δ = 1e-5 with replayed noise, one draw, and votes the mean of five: of two classes at ε = 1 draws
differ by five points. ε is that of exchanging a record, except in rows labelled "added or removed"; for DP-SGD, that
is the relation of its own accountant.

`--parties 0` selects the methods that do not depend on who holds which record: sums, DP-SGD with all records in one
place (benchmarks/dp_sgd.py), votes of the planned number of teachers on evenly dealt records, and gradients without
noise. For any other number, dealt evenly (IID) or by Dirichlet(0.1):

- votes: the parties share the number of teachers that `terrine.planning` finds for all records, and each has at least
  one. They answer 6,000 synthetic queries, and the student is the preset's. They read at most 200 of the features that
  vectors are made of. Except for CIFAR-10, these are under moments released at 5 % of the budget, as in the presets (of
  many records, to which their noise makes no difference, at 5 % of ε = 1, computed once).
- DP-FedAvg (benchmarks/dp_fedavg.py) in 20 rounds of five steps at rate 4, untuned.
- a single party, without noise: the mean of up to 50 parties that learn from their own records.

All other settings are those of presets. Figures are cached in `--work`. The last output is the rows of
docs/measurements/rivals.json.
"""

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from benchmarks.cells import KEPT, Cells, common_options, datasets
from benchmarks.dp_fedavg import FedAvgSettings
from benchmarks.dp_fedavg import train as federated
from benchmarks.features import QUIET, TEACHERS, student_of_votes
from benchmarks.sums import DELTA, EPSILONS, KINDS, features, right, vectors
from terrine.aggregation.records import Records
from terrine.aggregation.sums import Sums, mu_left
from terrine.data.partition import dirichlet, iid
from terrine.heads import LinearHead, predict
from terrine.planning import plan
from terrine.privacy.accounting.gaussian import mu_of, mu_squared
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean
from terrine.teachers.linear import LinearHeads, train_heads, vote

DATA = {
    "digits": "digits",
    "MNIST": "MNIST",
    "blood cells": "blood cells",
    "PneumoniaMNIST": "PneumoniaMNIST",
    "CIFAR-10 (JPEG copy)": "CIFAR-10 (JPEG copy), 500 features",
}
MOST_FEATURES, MANY, DRAWS = 200, 10_000, 5  # of votes: features, records, and draws of the noise
FEDERATED = FedAvgSettings(learning_rate=4.0, scale=1.0)
APART = ("votes", "DP-FedAvg", "a party alone, no privacy")
SPREADS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "IID": lambda labels, parties: iid(len(labels), parties, seed=0),
    "Dirichlet(0.1)": lambda labels, parties: dirichlet(labels, parties, 0.1, seed=0),
}


class Study:
    """A data set's vectors, and what is measured on them."""

    def __init__(self, name: str, root: Path, work: Path) -> None:
        self.name, self.root, self.work = name, root, work

    @functools.cached_property
    def own(self) -> tuple[Records, np.ndarray, np.ndarray]:
        return vectors(DATA[self.name], self.root, self.work)

    def summed(self, kind: Sums, mu: float) -> float:
        records, *test = self.own
        return right(kind.head(kind.release(records, mu, ReplayNoise(0)), mu), *test)

    def sums(self, kind: Sums, added: bool) -> dict[str, float]:
        cost = mu_squared(kind.schedule(1.0).event_added) ** 0.5 if added else 1.0
        return {str(epsilon): self.summed(kind, mu_left(epsilon, DELTA) / cost) for epsilon in EPSILONS}

    def dp_sgd(self) -> dict[str, float]:
        import dp_sgd  # here, because it needs Opacus

        records, test, labels = self.own
        split, recipe, found = (
            [torch.from_numpy(records.vectors), torch.from_numpy(test)],
            dp_sgd.RECIPES["terrine"],
            {},
        )
        names = type("Labels", (), {"train_labels": records.labels, "test_labels": labels, "classes": records.classes})
        for epsilon in EPSILONS:
            found[str(epsilon)] = dp_sgd.measure(split, names, "terrine", recipe, float(epsilon), 0)["accuracy"]
        return found

    def votes(self, parties: np.ndarray) -> dict[str, float]:
        """parties: int64 [records]."""
        found, records = {}, self.own[0]
        for epsilon in EPSILONS:
            mean, spent = None, 0.0
            if not self.name.startswith("CIFAR"):
                mean = ClippedMean.for_share(0.05, epsilon if len(parties) < MANY else 1, DELTA)
                spent = mu_squared(mean.event) / mu_of(epsilon, DELTA) ** 2
            kept = features(DATA[self.name], self.root, self.work, mean)
            asked = {"classes": records.classes, "epsilon": epsilon, "delta": DELTA, "queries": len(kept["queries"])}
            planned = plan(len(parties), moments=spent, **asked)
            each = max(1, round(planned.teachers / (parties.max() + 1)))
            teacher = parties * each + iid(len(parties), each, seed=1)
            student = student_of_votes(kept, teacher, asked["classes"], MOST_FEATURES)
            test = kept["test"][:, :MOST_FEATURES]
            right = [self._accuracy(student(planned, seed), test, kept["test_labels"]) for seed in range(DRAWS)]
            found[str(epsilon)] = float(np.mean(right))
        return found

    def fedavg(self, parties: np.ndarray) -> dict[str, float]:
        records, test, labels = self.own
        made = functools.partial(
            federated, records.vectors, records.labels, parties, int(parties.max()) + 1, records.classes, FEDERATED
        )
        return {
            str(epsilon): self._accuracy(
                made(epsilon=epsilon, delta=DELTA, noise=ReplayNoise(epsilon)).head, test, labels
            )
            for epsilon in EPSILONS
        }

    def alone(self, parties: np.ndarray) -> dict[str, float]:
        records, test, labels = self.own
        some = np.unique(parties)[:50]
        each = [(found == labels).mean() for found in vote(self._heads(records.vectors, parties, some), test).T]
        return dict.fromkeys(map(str, EPSILONS), float(np.mean(each)))

    def _heads(self, rows: np.ndarray, teacher: np.ndarray, wanted: Iterable[int]) -> LinearHeads:
        records = self.own[0]
        return train_heads(rows, records.labels, teacher, list(map(int, wanted)), records.classes, TEACHERS, seed=0)

    @staticmethod
    def _accuracy(head: LinearHead, test: np.ndarray, labels: np.ndarray) -> float:
        return float((predict(head, test).argmax(axis=1) == labels).mean())

    def cells(self, number: int) -> dict[str, Callable[[], dict[str, float]]]:
        """Measurements with `parties` parties, by the names of the table's rows."""
        if number:
            found = {}
            for spread, deal in SPREADS.items():
                for method, measure in zip(APART, (self.votes, self.fedavg, self.alone), strict=True):
                    found[f"{method} | {number:,}, {spread}"] = lambda deal=deal, measure=measure: measure(
                        deal(self.own[0].labels, number)
                    )
            return found
        moments, gradients = KINDS
        return {
            "moments | any": lambda: self.sums(moments, False),
            "gradients | any": lambda: self.sums(gradients, False),
            "gradients, added or removed | any": lambda: self.sums(gradients, True),
            "DP-SGD, added or removed | one place": self.dp_sgd,
            "votes | as many teachers as advised": lambda: self.votes(np.zeros(len(self.own[0].labels), np.int64)),
            "no privacy | one place": lambda: dict.fromkeys(map(str, EPSILONS), self.summed(gradients, QUIET)),
        }


def shown(found: dict[str, float]) -> str:
    """The accuracies of one method at all budgets, or the one that does not depend on them."""
    texts = [f"{100 * found[str(epsilon)]:.1f}" for epsilon in EPSILONS]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def main() -> None:
    """Measure what is not known yet, and print the rows."""
    parser = common_options(__doc__, root=datasets(), work=KEPT / "sums")
    parser.add_argument("--data", choices=list(DATA), nargs="+", default=list(DATA))
    parser.add_argument("--parties", type=int, nargs="+", default=[0, 20, 200, 1000])
    options = parser.parse_args()
    kept, rows = Cells(options.work / "rivals.jsonl"), {}
    for name in options.data:
        study = Study(name, options.root, options.work)
        for number in options.parties:
            for row, measure in study.cells(number).items():
                if 2 * number > 1_435 and name == "digits":
                    continue  # fewer than two records for each party
                rows.setdefault(row, {})[name] = shown(kept.get(f"{row} {name}", measure))
    print(json.dumps([[*row.split(" | "), *(of.get(name, "") for name in DATA)] for row, of in rows.items()], indent=1))


if __name__ == "__main__":
    main()
