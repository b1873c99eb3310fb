import hashlib
import hmac
import json
from dataclasses import replace

import numpy as np
import pytest

from terrine.data.dataset import Dataset, fingerprint, split_records
from terrine.data.units import name_codes, place_codes, shares
from terrine.errors import InputError


def small_dataset() -> Dataset:
    generator = np.random.default_rng(0)
    return Dataset(
        name="small",
        train_images=generator.integers(0, 256, (12, 1, 4, 4), dtype=np.uint8),
        train_labels=np.arange(12) % 3,
        train_groups=np.arange(12) // 2,
        test_images=generator.integers(0, 256, (5, 1, 4, 4), dtype=np.uint8),
        test_labels=np.arange(5) % 3,
        class_names=("a", "b", "c"),
        public_benchmark=False,
    )


def test_a_valid_dataset_passes_and_its_representation_shows_no_record() -> None:
    small_dataset().validate()
    replace(small_dataset(), train_groups=None).validate()
    assert repr(small_dataset()) == "Dataset(small: 12 records of 1 x 4 x 4, 5 test records, 3 classes: private)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_images": np.zeros((12, 4, 4), np.uint8)}, r"train_images is uint8 \[12, 4, 4\]; it must be uint8"),
        ({"test_images": np.zeros((5, 1, 4, 4))}, r"test_images is float64 \[5, 1, 4, 4\]; it must be uint8"),
        ({"train_images": np.zeros((12, 2, 4, 4), np.uint8)}, r"\[12, 2, 4, 4\]; it must be uint8 .* C = 1 or 3"),
        ({"test_images": np.zeros((0, 1, 4, 4), np.uint8)}, r"\[0, 1, 4, 4\]; it must be .* at least one image"),
        (
            {"test_images": np.zeros((5, 1, 4, 6), np.uint8)},
            r"train_images has shape \[12, 1, 4, 4\] but test_images has shape \[5, 1, 4, 6\]",
        ),
        ({"class_names": ("a",)}, r"\['a'\] must be at least two distinct names"),
        ({"class_names": ("a", "b", "a")}, r"must be at least two distinct names"),
        ({"train_labels": np.zeros(11, np.int64)}, r"train_labels is int64 \[11\]; it must be int64 \[12\]"),
        ({"test_labels": np.zeros(5, np.uint8)}, r"test_labels is uint8 \[5\]"),
        ({"train_names": np.zeros(11, np.int64)}, r"train_names is int64 \[11\]"),
        ({"test_groups": np.zeros(4, np.int64)}, r"test_groups is int64 \[4\]"),
        ({"train_groups": np.zeros((12, 1), np.int64)}, r"train_groups is int64 \[12, 1\]"),
        ({"test_labels": np.array([0, 1, 7, 3, 2])}, r"test_labels\[2\] is 7, outside 0\.\.2 \(2 such labels\)"),
        ({"train_labels": np.array([0, 1, 2, -1] * 3)}, r"train_labels\[3\] is -1, outside 0\.\.2"),
        ({"train_labels": np.arange(12) % 2}, r"1 of 3 classes have no training records: 'c'"),
    ],
)
def test_an_unsound_dataset_is_refused_with_the_array_and_its_shape(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(small_dataset(), **change).validate()


def test_a_nan_image_is_named() -> None:
    images = np.zeros((12, 1, 4, 4), dtype=np.float32)
    images[7, 0, 2, 2] = np.nan
    with pytest.raises(InputError, match="small: train_images contains NaN in image 7"):
        replace(small_dataset(), train_images=images).validate()


def test_the_description_counts_classes_splits_groups_and_duplicates() -> None:
    dataset = small_dataset()
    dataset.train_images[[4, 9]] = dataset.train_images[1]
    dataset.test_images[[0, 3]] = dataset.train_images[5]
    description = json.loads(json.dumps(dataset.describe()))
    assert description["shape"] == [1, 4, 4]
    assert description["records"] == {"train": 12, "test": 5}
    assert description["classes"] == {
        "a": {"train": 4, "test": 2},
        "b": {"train": 4, "test": 2},
        "c": {"train": 4, "test": 1},
    }
    assert description["groups"] == 6
    assert description["exact_duplicates"] == {"train": {"sets": 1, "records": 3}, "test_images_seen_in_train": 2}
    assert replace(dataset, train_groups=None).describe()["groups"] is None


def test_one_set_is_split_with_its_groups() -> None:
    images = np.arange(100, dtype=np.uint8).reshape(100, 1, 1, 1)
    labels, groups = np.arange(100) % 2, np.arange(100) // 4
    dataset = split_records(
        images, labels, groups=groups, name="set", class_names=("a", "b"), test_fraction=0.2, seed=0
    )
    dataset.validate()
    assert 60 < dataset.records < 95
    index = [next(i for i in range(100) if np.array_equal(images[i], image)) for image in dataset.train_images]
    assert np.array_equal(dataset.train_labels, labels[index])
    assert np.array_equal(dataset.train_groups, groups[index])
    # A record is named by its place before the split, so another split renames no record.
    assert np.array_equal(dataset.train_names, place_codes(100)[index])
    out = [next(i for i in range(100) if np.array_equal(images[i], image)) for image in dataset.test_images]
    assert np.array_equal(dataset.test_units, groups[out])
    assert sorted(index + out) == list(range(100))
    assert not set(groups[index]) & set(groups[out])


def test_labels_have_no_say_in_who_is_held_out() -> None:
    images = np.arange(100, dtype=np.uint8).reshape(100, 1, 1, 1)
    held_out = []
    for labels in (np.arange(100) % 2, np.arange(100) // 50):
        dataset = split_records(images, labels, name="set", class_names=("a", "b"), test_fraction=0.2, seed=0)
        held_out.append(dataset.test_images.ravel().tolist())
    drawn = shares(place_codes(100), 0, "data.split")
    assert held_out == [[place for place in range(100) if drawn[place] < 0.2]] * 2


def test_records_are_named_by_their_places_unless_the_data_name_them() -> None:
    assert np.array_equal(small_dataset().record_names, place_codes(12))
    names = name_codes("abcdefghijkl")
    assert np.array_equal(replace(small_dataset(), train_names=names).record_names, names)
    again = replace(small_dataset(), train_names=name_codes("aabcdefghiii"))
    assert again.describe()["shared_names"] == {"sets": 2, "records": 5}
    assert small_dataset().describe()["shared_names"] is None


def test_the_fingerprint_is_an_hmac_of_every_array() -> None:
    dataset = replace(small_dataset(), train_groups=None)
    message = b"terrine dataset 2"
    message += b"\ntrain_images |u1 [12, 1, 4, 4]\n" + dataset.train_images.tobytes()
    message += b"\ntrain_labels <i8 [12]\n" + dataset.train_labels.astype("<i8").tobytes()
    message += b"\ntrain_names <i8 [12]\n" + place_codes(12).astype("<i8").tobytes()
    message += b"\ntrain_groups none\n"
    message += b"\ntest_images |u1 [5, 1, 4, 4]\n" + dataset.test_images.tobytes()
    message += b"\ntest_labels <i8 [5]\n" + dataset.test_labels.astype("<i8").tobytes()
    assert fingerprint(dataset, b"key") == hmac.new(b"key", message, hashlib.sha256).hexdigest()


def test_the_fingerprint_forgets_names_of_classes_and_memory_layout() -> None:
    dataset = small_dataset()
    transposed = np.asfortranarray(dataset.train_images)
    renamed = replace(dataset, name="other", class_names=("x", "y", "z"), train_images=transposed)
    assert fingerprint(renamed, b"key") == fingerprint(dataset, b"key")


FIELDS = ["train_images", "train_labels", "train_names", "train_groups", "test_images", "test_labels"]


@pytest.mark.parametrize("field", FIELDS)
def test_any_changed_value_changes_the_fingerprint(field: str) -> None:
    dataset = replace(small_dataset(), train_names=name_codes("abcdefghijkl"))
    changed = getattr(dataset, field).copy()
    changed.flat[0] += 1
    assert fingerprint(replace(dataset, **{field: changed}), b"key") != fingerprint(dataset, b"key")


def test_key_order_and_split_change_the_fingerprint() -> None:
    dataset = replace(small_dataset(), train_groups=None)
    prints = {
        fingerprint(dataset, b"key"),
        fingerprint(dataset, b"other"),
        fingerprint(replace(dataset, train_groups=np.zeros(12, np.int64)), b"key"),
        fingerprint(replace(dataset, train_images=dataset.train_images[::-1]), b"key"),
        fingerprint(replace(dataset, train_images=dataset.train_images.reshape(12, 1, 2, 8)), b"key"),
    }
    assert len(prints) == 5
