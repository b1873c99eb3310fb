"""Scikit-learn's handwritten digits: 1,797 real 8×8 images that are installed with the package."""

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np

from terrine.data.dataset import Dataset, split_records
from terrine.data.public import refuse_other_bytes
from terrine.data.source import ImageSource, Progress, Split

CONTENT = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
"""SHA-256 of the images followed by the labels in scikit-learn's `digits.csv.gz`, one byte per value."""


class Digits(Split, ImageSource):
    """Scikit-learn's digits with grey values 0..16 scaled to 0..255.

    There is no official test split: about `test_fraction` of the records are drawn by position and seed.
    """

    name: Literal["digits"] = "digits"

    def read(self, at: Path = Path(), seed: int = 0, progress: Progress | None = None) -> Dataset:
        from sklearn.datasets import load_digits  # takes a second to import

        bunch = load_digits()
        content = bunch.images.astype(np.uint8).tobytes() + bunch.target.astype(np.uint8).tobytes()
        official = hashlib.sha256(content).hexdigest() == CONTENT
        refuse_other_bytes(self.name, "scikit-learn's digits.csv.gz", official=official, public=self.public_benchmark)
        return split_records(
            np.rint(bunch.images[:, None] * (255 / 16)).astype(np.uint8),
            bunch.target.astype(np.int64),
            test_fraction=self.test_fraction,
            seed=seed,
            name=self.name,
            class_names=tuple(map(str, range(10))),
            public_benchmark=official,
            declared=True,
        )
