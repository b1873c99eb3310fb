import numpy as np
from sklearn.datasets import load_digits

from terrine.data.source import load_dataset


def test_digits_are_enlarged_and_split() -> None:
    dataset = load_dataset("digits")
    dataset.validate()
    assert dataset.train_images.shape == (1435, 1, 28, 28)
    assert dataset.test_images.shape == (362, 1, 28, 28)
    assert (dataset.classes, dataset.public_benchmark) == (10, True)


def test_grey_values_run_from_black_to_white() -> None:
    dataset = load_dataset("digits", size=8, seed=3)
    originals = {tuple(round(value * 255 / 16) for value in image.ravel()) for image in load_digits().images}
    assert {tuple(image.ravel().tolist()) for image in dataset.train_images} <= originals


def test_the_split_depends_on_the_seed_alone() -> None:
    assert np.array_equal(load_dataset("digits", seed=1).test_images, load_dataset("digits", seed=1).test_images)
    assert not np.array_equal(load_dataset("digits", seed=1).test_images, load_dataset("digits", seed=2).test_images)
