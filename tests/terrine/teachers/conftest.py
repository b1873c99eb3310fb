"""Small images that a network can learn in a second, dealt to teachers of unequal size."""

import numpy as np
import pytest

from terrine.queries import Queries
from terrine.teachers.records import Records

CLASSES = 3


def striped_images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 images [count, 1, 8, 8] with a bright stripe where the class is, and the classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count)
    images = generator.integers(0, 100, (count, 1, 8, 8)).astype(np.uint8)
    images[np.arange(count), 0, 2 * labels + 1] = 240
    return images, labels


@pytest.fixture(scope="package")
def records() -> Records:
    """90 records of 5 teachers; teachers 0 and 4 have 21, the others 16 each."""
    images, labels = striped_images(90, 0)
    sizes = [21, 16, 16, 16, 21]
    assignment = np.random.default_rng(1).permutation(np.repeat(np.arange(5), sizes))
    return Records(images, labels, assignment, CLASSES)


@pytest.fixture(scope="package")
def queries() -> Queries:
    """60 queries in batches of 20, 25 and 15, not in their order."""
    images, _ = striped_images(60, 2)
    order = np.random.default_rng(3).permutation(60)
    return Queries(images, [order[:20], order[20:45], order[45:]])


@pytest.fixture(scope="package")
def feature_records(records) -> Records:
    """The same records as features: their pixels."""
    features = records.inputs.reshape(len(records.inputs), -1).astype(np.float32) / 255
    return Records(features, records.labels, records.assignment, CLASSES)


@pytest.fixture(scope="package")
def feature_queries(queries) -> Queries:
    """The same queries as features."""
    return Queries(queries.inputs.reshape(len(queries.inputs), -1).astype(np.float32) / 255, queries.batches)
