"""Reference values and vote histograms for the tests of the accounting."""

import json
from pathlib import Path

import numpy as np

SIXTEEN_ORDERS = np.array([1.25, 1.5, 2, 3, 4, 8, 16, 16.5, 20, 25, 32, 50, 64, 100, 250, 500])


class Golden:
    """The reference file and the arrays beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "golden"
        self.values = json.loads((self.folder / "pate_accounting.json").read_text())

    def __getitem__(self, name):
        return self.values[name]

    def array(self, name: str) -> np.ndarray:
        array = np.load(self.folder / name)
        return array.astype(np.int64) if array.dtype.kind in "iu" else array

    def votes(self, name: str) -> np.ndarray:
        return self.array(f"{name}.npy")


def random_histograms(queries: int, teachers: int, classes: int, seed: int) -> np.ndarray:
    """Histograms from unanimous to undecided, the winner anywhere."""
    rng = np.random.default_rng(seed)
    agreement = rng.beta(2, 1, queries)[:, None]
    others = rng.dirichlet(np.full(classes - 1, rng.choice([0.1, 1.0, 50.0])), queries)
    votes = rng.multinomial(teachers, np.concatenate((agreement, others * (1 - agreement)), axis=1))
    return rng.permuted(votes, axis=1)
