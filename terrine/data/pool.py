"""A public pool: images of the private data's own kind that their owner declares public, to be asked about.

Published systems (Prom-PATE, Li et al. 2023) let students learn from part of a benchmark's test split. Here the pool is
cut off before anything else is done with the data, from the validation split or from the test split, so that no record
is in two of private records, pool and test images; and a test image with the very pixels of a pool image is left out,
so that nothing is tested that a student may have seen. A private record stays where it is, whatever it shows: were one
left out for being like a public image, all after it would be dealt to other teachers. Exchanging a private record moves
no other one, and never changes the pool. What is cut from the test split draws by itself, too: the groups or names of
records where Terrine drew that split (`terrine.data.units`), else their places in it.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from terrine.data.content_digest import seen_images
from terrine.data.dataset import Dataset, taken
from terrine.data.units import place_codes, shares
from terrine.errors import InputError


def take_pool(dataset: Dataset, source: Literal["validation", "test"], fraction: float = 1.0, *, seed: int) -> Dataset:
    """Return the dataset with its public pool apart; its private records are those it had, in their order.

    source: the whole `validation` split, which `dataset.pool_images` and `pool_labels` hold where the data have one, or
    about a `fraction` of the `test` split. Raises InputError when there is none to take, or nothing would be left to
    teach with or to test on.
    """
    columns = ("images", "labels", "names", "groups", "contents", "numbers")
    held_out = {name: getattr(dataset, f"test_{name}") for name in columns}
    test = np.arange(len(dataset.test_images))
    if source == "test":
        units = place_codes(len(test)) if dataset.test_units is None else dataset.test_units
        public = shares(units, seed, "public pool") < fraction
        test = np.flatnonzero(~public)
        dataset = replace(dataset, **taken("pool", public, **{name: held_out[name] for name in columns[:-1]}))
    images, labels = dataset.pool_images, dataset.pool_labels
    if images is None or labels is None:
        raise InputError(
            f"{dataset.name} has no validation split to be the public pool. Use data.pool=test, which takes a part of "
            "the test split."
        )
    test = test[~seen_images(images, dataset.test_images[test])]
    if not (len(images) and len(test)):
        raise InputError(
            f"{dataset.name}: a public pool of {len(images)} images leaves {len(test)} test images. There must be some "
            "of each: choose another data.pool or data.pool_fraction."
        )

    return replace(dataset, **taken("test", test, **held_out))


def check_disjoint(dataset: Dataset) -> dict[str, int]:
    """Return how many images each part has, and how many are in two, after proof that no test image is in the pool.

    `private in pool` and `test in private` count images that the data hold twice: private figures, and reasons why
    answers and students may look better than they are. Raises InputError where a test image is in the pool, or there is
    no pool.
    """
    images = dataset.pool_images
    if images is None:
        raise InputError(f"{dataset.name} has no public pool.")
    count = int(seen_images(images, dataset.test_images).sum())
    if count:
        raise InputError(f"{dataset.name}: {count} test images are in the public pool as well. Keep them apart.")
    return {
        "private": len(dataset.train_images),
        "pool": len(images),
        "test": len(dataset.test_images),
        "private in pool": int(seen_images(images, dataset.train_images).sum()),
        "test in private": int(seen_images(dataset.train_images, dataset.test_images).sum()),
    }
