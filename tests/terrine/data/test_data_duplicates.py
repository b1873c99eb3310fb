from pathlib import Path

import numpy as np
import pytest

from terrine.data.duplicates import (
    duplicate_counts,
    exact_duplicates,
    merge_groups,
    number_by_appearance,
    shared_images,
)


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
    assert shared_images(train, test) == expected


@pytest.mark.parametrize("seed", range(20))
def test_merged_groups_are_the_transitive_closure(seed: int) -> None:
    generator = np.random.default_rng(seed)
    groups, ids = generator.integers(0, 12, 20), generator.integers(0, 15, 20)
    component = list(range(20))
    for _ in range(20):  # spread the smallest number until nothing changes
        for i in range(20):
            for j in range(20):
                if groups[i] == groups[j] or ids[i] == ids[j]:
                    component[i] = component[j] = min(component[i], component[j])
    merged = merge_groups(groups, ids)
    assert merged.dtype == np.int64
    for i in range(20):
        for j in range(20):
            assert (merged[i] == merged[j]) == (component[i] == component[j])


def test_many_records_of_one_group_and_one_image_stay_one_unit() -> None:
    assert set(merge_groups(np.zeros(512, dtype=np.int64), np.zeros(512, dtype=np.int64)).tolist()) == {0}


def test_numbers_follow_first_appearance() -> None:
    assert number_by_appearance(np.array([7, 3, 7, 9, 3])).tolist() == [0, 1, 0, 2, 1]


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
    assert pairs_inside + shared_images(train, test) == 17
