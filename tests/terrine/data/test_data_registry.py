from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from terrine.data import registry
from terrine.data.images import resize
from terrine.errors import InputError, SettingError

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    np.savez(tmp_path / "mine.npz", images=IMAGES, labels=np.arange(40) % 2)
    return tmp_path / "mine.npz"


def test_names_are_distinct_and_hold_every_source() -> None:
    names = registry.names()
    assert len(set(names)) == len(names) == 1 + 5 + 12 + 3
    assert {"digits", "mnist", "fashion_mnist", "cifar10", "svhn", "bloodmnist", "npz", "folder", "table"} <= set(names)


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"there is no dataset 'imagenet'\. Known are digits, mnist, .*npz, folder, table\."
    ):
        registry.load("imagenet", root=tmp_path)


@pytest.mark.parametrize("name", ["npz", "folder"])
def test_own_data_need_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingError, match=rf"data\.name is {name}, but data\.path is not set"):
        registry.load(name, root=tmp_path)


def test_a_table_needs_a_target_and_a_path(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"data\.target is not set"):
        registry.load("table", root=tmp_path, path=tmp_path / "t.csv")
    with pytest.raises(SettingError, match=r"data\.path is not set"):
        registry.load("table", root=tmp_path, target="y")


def test_a_table_is_a_dataset_of_its_private_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(100)))
    dataset = registry.load("table", root=tmp_path, path=path, target="y", public_fraction=0.3, size=28, channels=1)
    assert dataset.column_names == ("x",)
    assert dataset.train_images.shape == (len(dataset.train_labels), 1)
    assert 50 < len(dataset.train_images) + len(dataset.test_images) < 90


def test_own_arrays_stay_as_they_are_unless_asked(tmp_path: Path, arrays: Path) -> None:
    dataset = registry.load("npz", root=tmp_path, path=arrays)
    assert (dataset.train_images.shape[1:], dataset.records + len(dataset.test_labels)) == ((3, 8, 8), 40)


def test_size_and_channels_apply_to_both_splits(tmp_path: Path, arrays: Path) -> None:
    native = registry.load("npz", root=tmp_path, path=arrays)
    fitted = registry.load("npz", root=tmp_path, path=arrays, size=5, channels=1)
    assert fitted.train_images.shape == (native.records, 1, 5, 5)
    assert fitted.test_images.shape == (40 - native.records, 1, 5, 5)
    small = resize(native.test_images, 5).transpose(0, 2, 3, 1) @ np.array([0.299, 0.587, 0.114])
    assert np.abs(fitted.test_images[:, 0] - small).max() <= 1
    assert np.array_equal(fitted.test_labels, native.test_labels)


def test_digits_take_their_size_fraction_and_seed(tmp_path: Path) -> None:
    dataset = registry.load("digits", root=tmp_path, size=10, test_fraction=0.5, seed=7)
    assert dataset.train_images.shape[1:] == (1, 10, 10)
    assert abs(len(dataset.test_labels) - 898) < 130


def test_what_is_returned_has_been_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    test = {"test_images": IMAGES[:4], "test_labels": np.array([0, 1, 2, 2])}
    np.savez(path, train_images=IMAGES, train_labels=np.arange(40) % 2, **test)
    with pytest.raises(InputError, match=r"1 of 3 classes have no record in train_labels: '2'"):
        registry.load("npz", root=tmp_path, path=path)


@pytest.mark.parametrize(("setting", "value"), [("size", 0), ("size", -3), ("channels", 2)])
def test_impossible_settings_are_refused_before_anything_is_read(tmp_path: Path, setting: str, value: int) -> None:
    with pytest.raises(SettingError, match=rf"data\.{setting} is {value}"):
        registry.load("npz", root=tmp_path, path=tmp_path / "nothing.npz", **{setting: value})


def test_progress_is_reported_for_folders(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for i in range(3):
            Image.fromarray(IMAGES[i]).save(tmp_path / label / f"{i}.png")
    calls: list[tuple[int, int]] = []
    registry.load("folder", root=tmp_path, path=tmp_path, progress=lambda done, files: calls.append((done, files)))
    assert calls == [(6, 6)]
