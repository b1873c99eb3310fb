from pathlib import Path

import numpy as np
import pytest

from terrine.data.content_digest import duplicate_counts, exact_duplicates, seen_images


def few_different_images(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, (count, 1, 2, 2), dtype=np.uint8)


@pytest.mark.parametrize("seed", range(5))
def test_each_record_points_to_the_first_with_its_pixels(seed: int) -> None:
    images = few_different_images(30, seed)
    expected = [next(j for j in range(i + 1) if np.array_equal(images[i], images[j])) for i in range(30)]
    assert exact_duplicates(images).tolist() == expected


def test_one_different_pixel_makes_a_record_its_own() -> None:
    images = np.zeros((3, 1, 28, 28), dtype=np.uint8)
    images[1, 0, 27, 27] = 1
    assert exact_duplicates(images).tolist() == [0, 1, 0]


def test_no_images_have_no_duplicates() -> None:
    assert exact_duplicates(np.zeros((0, 1, 4, 4), dtype=np.uint8)).shape == (0,)


def test_counts_name_sets_and_records() -> None:
    assert duplicate_counts(np.array([0, 1, 0, 3, 1, 0])) == {"sets": 2, "records": 5}
    assert duplicate_counts(np.array([0, 1, 2])) == {"sets": 0, "records": 0}


def test_shared_images_are_counted_on_the_test_side() -> None:
    train, test = few_different_images(6, 0), few_different_images(20, 1)
    expected = sum(any(np.array_equal(image, other) for other in train) for image in test)
    assert 0 < expected < 20
    assert seen_images(train, test).sum() == expected


def test_blood_cells_hold_seventeen_identical_pairs(shared_folder: Path) -> None:
    path = shared_folder / "datasets" / "pbc-blood" / "blood_28.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    with np.load(path, allow_pickle=False) as archive:
        images = np.concatenate([archive[f"{split}_images"] for split in ("train", "val", "test")])
        tested = len(archive["test_images"])
    assert duplicate_counts(exact_duplicates(images)) == {"sets": 17, "records": 34}
    train, test = images[:-tested], images[-tested:]
    pairs_inside = duplicate_counts(exact_duplicates(train))["sets"] + duplicate_counts(exact_duplicates(test))["sets"]
    assert pairs_inside + seen_images(train, test).sum() == 17
