"""Cost of poisoned teachers: accuracy of a student if some teachers vote maliciously.

    python benchmarks/poisoned_votes.py [--root FOLDER] [--seeds 0 1 2]

Malformed votes are refused by their proof (docs/collaboration.md); these votes are valid but wrong. The data are digits
(120 teachers, 4,000 queries) and MNIST (200 teachers, 6,000 queries; in `--root`), with linear teachers on scattering
features and ε = 8 at δ = 1e-5 on noisy histograms. 0, 5, 10 and 20 % of the teachers are poisoned, in three ways: they
all vote for class 0; each votes at random; or, knowing all other votes, they all vote for the runner-up of every query.
Printed: accuracy of a linear student on the test split in per cent, mean ± standard deviation over seeds.
"""

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from cells import common_options, datasets, heading, row, spread

import terrine as tr
from terrine.aggregation.votes import count_votes

SHARES = (0.0, 0.05, 0.1, 0.2)
Poison = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


def _runner_up(votes: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    counts = count_votes(votes[:, count:], 10)
    return np.repeat(np.argsort(-counts, axis=1, kind="stable")[:, 1:2], count, axis=1)


POISONS: dict[str, Poison] = {
    "class 0": lambda votes, count, generator: np.zeros((len(votes), count)),
    "at random": lambda votes, count, generator: generator.integers(0, 10, (len(votes), count)),
    "the runner-up": _runner_up,
}


def poisoned(votes: np.ndarray, share: float, poison: Poison, seed: int) -> np.ndarray:
    """The votes [queries, teachers], those of the first share of the teachers replaced."""
    count, changed = round(share * votes.shape[1]), votes.copy()
    if count:
        changed[:, :count] = poison(votes, count, np.random.default_rng(seed))
    return changed


def remembering(backbone: Any) -> Any:
    """Cache the features of each batch, since the compared runs differ only in answers."""
    plain, known = backbone.features, {}

    def features(images: Any, statistics: str) -> Any:
        key = (hashlib.sha256(images.numpy().tobytes()).digest(), statistics)
        if key not in known:
            known[key] = plain(images, statistics)
        return known[key]

    backbone.features = features
    return backbone


def main() -> None:
    parser = common_options(__doc__, root=datasets(), seeds=[0, 1, 2])
    parser.add_argument("--data", nargs="+", default=["digits", "mnist"], choices=["digits", "mnist"])
    arguments = parser.parse_args()
    heading("data", "poison", *(f"{share:.0%}" for share in SHARES))
    for name in arguments.data:
        own, teachers, count = ({}, 120, 4_000) if name == "digits" else ({"root": arguments.root}, 200, 6_000)
        cells: dict[tuple[str, float], list[float]] = {}
        for seed in arguments.seeds:
            data = tr.load_dataset(name, **own)
            queries = tr.draw({"dead_leaves": 1, "stylegan": 1}, count=count, like=data, seed=seed)
            backbone = remembering(tr.Scattering(projection=200).fit(queries))
            parts = tr.partition(data, teachers=teachers, seed=seed)
            votes = tr.LinearTeachers(ridge=0.1).fit(data, parts, backbone).vote(queries)
            mechanism = tr.GaussianHistogram.calibrated(epsilon=8, delta=1e-5, answers=len(queries))
            for poison, change in POISONS.items():
                for share in SHARES:
                    if share == 0 and poison != "class 0":
                        cells.setdefault((poison, share), []).append(cells["class 0", share][-1])
                        continue
                    changed = replace(votes, values=poisoned(votes.values, share, change, seed))
                    with tempfile.TemporaryDirectory() as folder, tr.Ledger.open(folder, budget=8) as ledger:
                        release = ledger.release(mechanism, changed, edition="poisoned")
                    student = tr.LinearStudent().fit(queries, release, backbone)
                    cells.setdefault((poison, share), []).append(student.score(data.test))
        for poison in POISONS:
            row(name, poison, *(spread(cells[poison, share]) for share in SHARES))


if __name__ == "__main__":
    main()
