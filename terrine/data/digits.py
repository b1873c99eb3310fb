"""Scikit-learn's handwritten digits: 1,797 real 8×8 images that are installed with a package, so always at hand."""

import numpy as np

from terrine.data.dataset import Dataset, from_one_set
from terrine.data.images import resize

DEFAULT_SIZE = 28


def load(*, size: int | None = None, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Return the digits enlarged bilinearly to `size` (28), their grey values 0..16 scaled to 0..255.

    There is no official test split: one of about `test_fraction`, deterministic in `seed`, is drawn by place.
    """
    from sklearn.datasets import load_digits  # a second of importing that other datasets need not pay

    bunch = load_digits()
    images = np.rint(bunch.images[:, None] * (255 / 16)).astype(np.uint8)
    return from_one_set(
        "digits",
        resize(images, DEFAULT_SIZE if size is None else size),
        bunch.target.astype(np.int64),
        None,
        tuple(str(digit) for digit in range(10)),
        test_fraction=test_fraction,
        seed=seed,
        public_benchmark=True,
    )
