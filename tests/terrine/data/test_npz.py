from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from terrine.data.dataset import Dataset
from terrine.data.sources.npz import Npz
from terrine.data.units import name_codes, place_codes
from terrine.errors import InputError

GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8)
LABELS = np.arange(60) % 3
SPLIT = {
    "train_images": IMAGES[:30],
    "train_labels": LABELS[:30, None],
    "val_images": IMAGES[30:40],
    "val_labels": LABELS[30:40, None],
    "test_images": IMAGES[40:],
    "test_labels": LABELS[40:, None],
}


def load(path: Path, **settings: object) -> Dataset:
    return Npz(path=path, **settings).read()


def saved(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "cells.npz"
    np.savez_compressed(path, **arrays)
    return path


def test_one_set_is_split(tmp_path: Path) -> None:
    dataset = load(saved(tmp_path, images=IMAGES, labels=LABELS))
    dataset.validate()
    assert (dataset.name, dataset.class_names, dataset.public_benchmark) == ("cells", ("0", "1", "2"), False)
    assert dataset.train_images.shape == (60 - len(dataset.test_labels), 3, 6, 6)
    assert 3 < len(dataset.test_labels) < 25
    for image, label in zip(dataset.train_images, dataset.train_labels, strict=True):
        assert LABELS[next(i for i in range(60) if np.array_equal(IMAGES[i].transpose(2, 0, 1), image))] == label


def test_groups_stay_on_one_side(tmp_path: Path) -> None:
    groups = np.array([f"patient {i // 6}" for i in range(60)])
    dataset = load(saved(tmp_path, images=IMAGES, labels=LABELS, groups=groups), test_fraction=0.4)
    dataset.validate()
    assert dataset.train_groups is not None
    assert len(dataset.train_groups) == dataset.records
    _, counts = np.unique(dataset.train_groups, return_counts=True)
    assert set(counts.tolist()) == {6}
    assert set(dataset.train_groups.tolist()) < set(name_codes(f"patient {i}" for i in range(10)).tolist())


def test_given_splits_are_kept_and_validation_joins_train(tmp_path: Path) -> None:
    groups, names = np.arange(60) // 2, ("basophil", "monocyte", "platelet")
    own = {"train_groups": groups[:30], "val_groups": groups[30:40], "test_groups": groups[40:]}
    named = load(saved(tmp_path, **SPLIT, **own, class_names=np.array(names)))
    assert np.array_equal(named.train_groups, name_codes(str(group) for group in groups[:40]))
    assert named.class_names == names
    dataset = load(saved(tmp_path, **SPLIT, train_files=np.array(["ignored"])))
    dataset.validate()
    assert np.array_equal(dataset.train_images, IMAGES[:40].transpose(0, 3, 1, 2))
    assert np.array_equal(dataset.train_labels, LABELS[:40])
    assert np.array_equal(dataset.test_labels, LABELS[40:])
    assert dataset.train_groups is None


def test_records_without_ids_are_named_by_their_places_those_of_validation_apart(tmp_path: Path) -> None:
    dataset = load(saved(tmp_path, **SPLIT))
    expected = [*(str(place) for place in range(30)), *(f"val_{place}" for place in range(10))]
    assert np.array_equal(dataset.train_names, name_codes(expected))
    apart = load(saved(tmp_path, **SPLIT), pool="validation")
    assert np.array_equal(apart.train_names, place_codes(30))


def test_the_validation_split_may_be_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path, **SPLIT)
    left = load(path, validation="drop")
    assert np.array_equal(left.train_names, place_codes(30))
    assert np.array_equal(left.train_labels, LABELS[:30])
    assert left.pool_images is None
    with pytest.raises(ValidationError, match="validation=drop drops the split that pool=validation makes public"):
        load(path, validation="drop", pool="validation")


def test_ids_name_records_and_order_them(tmp_path: Path) -> None:
    ids = np.array([f"scan {(7 * i) % 60:02d}" for i in range(60)])
    own = {"labels": LABELS, "parties": np.arange(60) % 2, "groups": np.arange(60) // 2}
    dataset = load(saved(tmp_path, images=IMAGES, ids=ids, **own))
    index = [
        next(i for i in range(60) if np.array_equal(IMAGES[i].transpose(2, 0, 1), image))
        for image in dataset.train_images
    ]
    assert np.array_equal(dataset.train_names, name_codes(ids[index].tolist()))
    assert ids[index].tolist() == sorted(ids[index].tolist())
    assert np.array_equal(dataset.train_labels, LABELS[index])
    assert [dataset.party_names[party] for party in dataset.train_parties] == [str(i % 2) for i in index]
    assert np.array_equal(dataset.train_groups, name_codes(str(i // 2) for i in index))


def test_ids_of_given_splits_order_training_and_validation_together(tmp_path: Path) -> None:
    ids = {"train_ids": np.arange(30) * 2 + 100, "val_ids": np.arange(10) * 2 + 101}
    dataset = load(saved(tmp_path, **SPLIT, **ids))
    joined = np.concatenate([ids["train_ids"], ids["val_ids"]])
    order = np.argsort(joined)
    assert np.array_equal(dataset.train_names, name_codes(str(value) for value in joined[order]))
    assert np.array_equal(dataset.train_images, IMAGES[:40].transpose(0, 3, 1, 2)[order])
    assert np.array_equal(dataset.train_labels, LABELS[:40][order])


def test_floats_in_the_unit_interval_are_scaled(tmp_path: Path) -> None:
    path = saved(tmp_path, images=(IMAGES / 255).astype(np.float32), labels=LABELS)
    again = saved(tmp_path / ".", images=IMAGES, labels=LABELS)
    assert np.array_equal(load(path).train_images, load(again).train_images)


@pytest.mark.parametrize("kept", [0, 3, 100, 0.5, 0.999])
def test_a_truncated_file_is_named(tmp_path: Path, kept: float) -> None:
    path = saved(tmp_path, images=IMAGES, labels=LABELS)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with pytest.raises(InputError, match=r"cells\.npz (is damaged|contains Python objects)"):
        load(path)


def test_a_flipped_byte_inside_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path, images=IMAGES, labels=LABELS)
    content = bytearray(path.read_bytes())
    content[1000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cells\.npz is damaged.*Copy it again"):
        load(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"has no array test_images"),
        ({"images": np.array([print, "x"], dtype=object), "labels": LABELS}, "Python objects.*never unpickles"),
        (
            {"images": np.zeros((0, 8, 8), np.uint8), "labels": np.zeros(0, int)},
            r"images has shape \[0, 8, 8\]\. At least one image",
        ),
        (
            {"images": IMAGES, "labels": LABELS, "ids": np.arange(60) % 20},
            r"ids\[0\] and ids\[20\] are both '0'\. IDs must be unique",
        ),
        (
            {**SPLIT, "train_ids": np.arange(30), "val_ids": np.arange(10) + 25},
            r"train_ids\[25\] and val_ids\[0\] are both '25'",
        ),
        ({"pictures": IMAGES}, "has no array test_images, .*; it contains pictures. Give images and labels"),
        ({"images": IMAGES}, "has no array labels; it contains images"),
        ({"train_images": IMAGES, "train_labels": LABELS}, "has no array test_images, test_labels; it contains"),
        ({**SPLIT, "train_groups": LABELS[:30]}, "has no array val_groups"),
        ({**SPLIT, "train_ids": np.arange(30)}, "has no array val_ids"),
        ({"images": IMAGES, "labels": LABELS, "ids": np.arange(59)}, r"ids has shape \[59\], but its images"),
        (
            {"images": IMAGES, "labels": LABELS[:-1]},
            r"labels has shape \[59\], but its images have shape \[60, 3, 6, 6\]\. Give one value per image",
        ),
        ({"images": IMAGES, "labels": LABELS, "groups": LABELS[:-1]}, r"groups has shape \[59\], but its images"),
        (
            {**SPLIT, "test_images": IMAGES[40:, :5]},
            r"test_images has shape \[20, 5, 6, 3\], but train_images has shape \[30, 6, 6, 3\]",
        ),
        (
            {"images": IMAGES, "labels": np.where(LABELS == 2, 12, LABELS)},
            r"labels\[2\] is 12, but the 3 classes",
        ),
        (
            {"images": np.where(np.arange(60)[:, None, None, None] == 8, np.nan, IMAGES / 255), "labels": LABELS},
            "images contains NaN in image 8",
        ),
        (
            {"images": IMAGES.astype(np.float32), "labels": LABELS},
            r"image 0 has values from .* Floats must lie in \[0, 1\]",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=r"cells\.npz.*" + message):
        load(saved(tmp_path, **arrays))


def test_a_class_that_is_empty_in_train_is_refused(tmp_path: Path) -> None:
    labels = np.where(LABELS[:40] == 2, 0, LABELS[:40])[:, None]
    dataset = load(saved(tmp_path, **{**SPLIT, "train_labels": labels[:30], "val_labels": labels[30:]}))
    with pytest.raises(InputError, match="1 of 3 classes have no training records: '2'"):
        dataset.validate()


def test_a_person_in_train_and_test_is_refused(tmp_path: Path) -> None:
    groups = np.arange(60) // 3  # the thirteenth straddles the border at 40
    path = saved(tmp_path, **SPLIT, train_groups=groups[:30], val_groups=groups[30:40], test_groups=groups[40:])
    with pytest.raises(
        InputError, match="1 records of val_images, the first at index 9, have a group that is in test_gr"
    ):
        load(path)


def test_the_blood_cells_are_read(shared_folder: Path) -> None:
    path = shared_folder / "datasets" / "pbc-blood" / "blood_28.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    dataset = load(path)
    dataset.validate()
    assert dataset.train_images.shape == (11959 + 1712, 3, 28, 28)
    assert dataset.test_images.shape == (3421, 3, 28, 28)
    assert dataset.classes == 8
    assert dataset.describe()["exact_duplicates"] == {
        "train": {"sets": 11, "records": 22},
        "test_images_seen_in_train": 5,
    }


def test_parties_follow_their_records(tmp_path: Path) -> None:
    held = np.array(["north", "south", "west"])[np.arange(60) // 20]
    dataset = load(saved(tmp_path, images=IMAGES, labels=LABELS, parties=held))
    dataset.validate()
    assert dataset.party_names == ("north", "south", "west")
    for image, party in zip(dataset.train_images, dataset.train_parties, strict=True):
        index = next(i for i in range(60) if np.array_equal(IMAGES[i].transpose(2, 0, 1), image))
        assert dataset.party_names[party] == held[index]


def test_parties_of_given_splits_are_those_of_train_and_validation(tmp_path: Path) -> None:
    own = {"train_parties": np.arange(30) % 2 + 5, "val_parties": np.full(10, 9), "test_parties": np.arange(20)}
    dataset = load(saved(tmp_path, **SPLIT, **own))
    assert dataset.party_names == ("5", "6", "9")
    assert dataset.train_parties.tolist() == [*(i % 2 for i in range(30)), *([2] * 10)]
    with pytest.raises(InputError, match="has no array val_parties"):
        load(saved(tmp_path, **SPLIT, train_parties=own["train_parties"]))
    with pytest.raises(InputError, match=r"parties has shape \[3\], but its images have shape \[60"):
        load(saved(tmp_path, images=IMAGES, labels=LABELS, parties=np.arange(3)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("images.npy", r"images\.npy is damaged, or is not an archive"),
        ("nothing.npz", r"There is no file .*nothing"),
    ],
)
def test_other_files_are_named(tmp_path: Path, name: str, message: str) -> None:
    np.save(tmp_path / "images.npy", IMAGES)
    with pytest.raises(InputError, match=message):
        load(tmp_path / name)
