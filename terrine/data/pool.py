"""A public pool: images of the private domain that their owner declares public, used as queries.

Published systems (Prom-PATE, Li et al. 2023) let students learn from part of a benchmark's test split. The pool is
taken from the validation or the test split before anything else uses the data, so private records, pool and test images
are disjoint. A test image with the pixels of a pool image is dropped, because the student may have seen it. A private
record stays even if it equals a public image: dropping it would move other records to other teachers. Replacing a
private record therefore moves no other record and never changes the pool. From the test split, groups or names of
records are drawn if Terrine drew that split (`terrine.data.units`), and positions otherwise.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from terrine.data.content_digest import seen_images
from terrine.data.dataset import Dataset, split_fields
from terrine.data.units import place_codes, shares
from terrine.errors import InputError


def take_pool(dataset: Dataset, source: Literal["validation", "test"], fraction: float = 1.0, *, seed: int) -> Dataset:
    """Return the dataset with a public pool; its private records are unchanged.

    Args:
        dataset: With `source="validation"`, its pool images and labels are the validation split.
        source: Split that contains the public images.
        fraction: Share of the test split that is public.
        seed: Seed of the public share.

    Raises:
        InputError: there is no such split, or no pool or test image is left.
    """
    columns = ("images", "labels", "names", "groups", "contents", "numbers")
    held_out = {name: getattr(dataset, f"test_{name}") for name in columns}
    test = np.arange(len(dataset.test_images))
    if source == "test":
        units = place_codes(len(test)) if dataset.test_units is None else dataset.test_units
        public = shares(units, seed, "public pool") < fraction
        test = np.flatnonzero(~public)
        dataset = replace(dataset, **split_fields("pool", public, **{name: held_out[name] for name in columns[:-1]}))
    images = dataset.pool_images
    if images is None or dataset.pool_labels is None:
        raise InputError(f"{dataset.name} has no validation split for the public pool. Use data.pool=test.")
    test = test[~seen_images(images, dataset.test_images[test])]
    if not (len(images) and len(test)):
        raise InputError(
            f"{dataset.name}: a public pool of {len(images)} images leaves {len(test)} test images, but both need "
            "some. Change data.pool or data.pool_fraction."
        )
    return replace(dataset, **split_fields("test", test, **held_out))


def check_disjoint(dataset: Dataset) -> dict[str, int]:
    """Return the number of images in each split, and of images that two splits share.

    `private in pool` and `test in private` count images that the data contain twice. These two counts are private. A
    large count means that answers and students may look better than they are.

    Raises:
        InputError: a test image is in the pool, or there is no pool.
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
