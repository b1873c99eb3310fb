from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from terrine.data.images import resize
from terrine.data.source import load_dataset
from terrine.data.sources.npz import Npz
from terrine.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    np.savez(tmp_path / "mine.npz", images=IMAGES, labels=np.arange(40) % 2)
    return tmp_path / "mine.npz"


def test_own_data_need_a_path() -> None:
    for name in ("npz", "folder", "table"):
        with pytest.raises(ValidationError, match="path\n  Field required"):
            load_dataset(name, **({"target": "y", "public_fraction": 0.2} if name == "table" else {}))


def test_a_table_is_a_dataset_of_its_private_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(100)))
    dataset = load_dataset("table", path=path, target="y", public_fraction=0.3)
    assert dataset.column_names is not None
    assert all(name.startswith("x=") for name in dataset.column_names)
    assert dataset.train_images.shape == (len(dataset.train_labels), len(dataset.column_names))
    assert 50 < len(dataset.train_images) + len(dataset.test_images) < 90


def test_size_and_channels_apply_to_both_splits(arrays: Path) -> None:
    native = Npz(path=arrays).read()
    assert (native.train_images.shape[1:], native.records + len(native.test_labels)) == ((3, 8, 8), 40)
    fitted = load_dataset("npz", path=arrays, size=10, channels=1)
    assert fitted.train_images.shape == (native.records, 1, 10, 10)
    assert fitted.test_images.shape == (40 - native.records, 1, 10, 10)
    large = resize(native.test_images, 10).transpose(0, 2, 3, 1) @ np.array([0.299, 0.587, 0.114])
    assert np.abs(fitted.test_images[:, 0] - large).max() <= 1
    assert np.array_equal(fitted.test_labels, native.test_labels)


def test_digits_take_their_size_fraction_and_seed() -> None:
    dataset = load_dataset("digits", size=10, test_fraction=0.5, seed=7)
    assert dataset.train_images.shape[1:] == (1, 10, 10)
    assert abs(len(dataset.test_labels) - 898) < 130


def test_what_is_returned_has_been_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    test = {"test_images": IMAGES[:4], "test_labels": np.array([0, 1, 2, 2])}
    np.savez(path, train_images=IMAGES, train_labels=np.arange(40) % 2, **test)
    with pytest.raises(InputError, match=r"1 of 3 classes have no training records: '2'"):
        load_dataset("npz", path=path)


def test_relative_paths_start_where_one_says(arrays: Path) -> None:
    assert load_dataset("npz", at=arrays.parent, path=arrays.name).records == load_dataset("npz", path=arrays).records


def test_progress_is_reported_for_folders(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for i in range(3):
            Image.fromarray(IMAGES[i]).save(tmp_path / label / f"{i}.png")
    calls: list[tuple[int, int]] = []
    load_dataset("folder", path=tmp_path, progress=lambda done, files: calls.append((done, files)))
    assert calls == [(6, 6)]
