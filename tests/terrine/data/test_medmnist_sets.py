import hashlib
from pathlib import Path

import medmnist
import numpy as np
import pytest

from terrine.data.dataset import Dataset
from terrine.data.source import SOURCES, load_dataset
from terrine.data.sources.medmnist import SIZES, MedMNIST
from terrine.errors import InputError


def load(name: str, **settings: object) -> Dataset:
    """Read files that are written here: no published ones, so private."""
    return MedMNIST(name=name, **{"public_benchmark": False, **settings}).read()


def write_set(path: Path, side: int = 28, classes: int = 8, colour: bool = True) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(side)
    arrays = {}
    for split, count in (("train", 32), ("val", 16), ("test", 16)):
        shape = (count, side, side, 3) if colour else (count, side, side)
        arrays[f"{split}_images"] = generator.integers(0, 256, shape, dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count, dtype=np.uint8) % classes)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return arrays


@pytest.mark.parametrize("place", ["medmnist/bloodmnist.npz", "bloodmnist.npz"])
def test_an_official_file_is_read_and_validation_joins_train(tmp_path: Path, place: str) -> None:
    arrays = write_set(tmp_path / place)
    dataset = load("bloodmnist", root=tmp_path, download=False)
    dataset.validate()
    expected = np.concatenate([arrays["train_images"], arrays["val_images"]]).transpose(0, 3, 1, 2)
    assert np.array_equal(dataset.train_images, expected)
    assert len(dataset.test_images) == 16
    assert dataset.class_names[:2] == ("basophil", "eosinophil")
    assert (dataset.name, dataset.public_benchmark) == ("bloodmnist", False)


def test_a_name_makes_no_other_file_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pneumoniamnist.npz"
    write_set(file, classes=2, colour=False)
    for settings in ({}, {"public_benchmark": True}):
        with pytest.raises(
            InputError, match=r"pneumoniamnist\.npz does not have the published digest .*data\.name=npz"
        ):
            load_dataset("pneumoniamnist", root=tmp_path, **settings)
    assert not load_dataset("pneumoniamnist", root=tmp_path, public_benchmark=False).public
    published = {**medmnist.INFO["pneumoniamnist"], "MD5": hashlib.md5(file.read_bytes()).hexdigest()}
    monkeypatch.setitem(medmnist.INFO, "pneumoniamnist", published)
    assert load_dataset("pneumoniamnist", root=tmp_path).public


def test_the_published_file_is_public(shared_folder: Path) -> None:
    root = shared_folder / "datasets"
    if not (root / "medmnist" / "pneumoniamnist.npz").is_file():
        pytest.skip("pneumoniamnist.npz does not lie beside the project")
    assert load_dataset("pneumoniamnist", root=root, download=False).public


@pytest.mark.parametrize(
    ("size", "side"),
    [(16, 28), (28, 28), (32, 28), (64, 64), (100, 64), (128, 128), (224, 224), (320, 224)],
)
def test_the_largest_published_size_that_fits_is_read(tmp_path: Path, size: int, side: int) -> None:
    for published in SIZES:
        name = "pneumoniamnist.npz" if published == 28 else f"pneumoniamnist_{published}.npz"
        write_set(tmp_path / name, side=published, classes=2, colour=False)
    dataset = load("pneumoniamnist", root=tmp_path, size=size, download=False)
    assert dataset.train_images.shape == (48, 1, side, side)


def test_several_findings_per_image_have_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Set data.findings to two or more of atelectasis, cardiomegaly"):
        load("chestmnist", root=tmp_path)


def test_missing_files_are_an_error_when_download_is_off(tmp_path: Path) -> None:
    message = r"dermamnist_64\.npz in .*data\.download is false\. Copy the file there \(from https://zenodo"
    with pytest.raises(InputError, match=message):
        load("dermamnist", root=tmp_path, size=64, download=False)


def test_missing_files_are_downloaded_by_medmnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(self: medmnist.BloodMNIST) -> None:
        write_set(Path(self.root) / f"bloodmnist{self.size_flag}.npz", side=self.size)

    monkeypatch.setattr(medmnist.BloodMNIST, "download", download)
    assert load("bloodmnist", root=tmp_path, size=64).train_images.shape == (48, 3, 64, 64)
    assert (tmp_path / "medmnist" / "bloodmnist_64.npz").is_file()


def test_a_download_that_fails_says_what_to_do_and_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(self: medmnist.BloodMNIST) -> None:
        (Path(self.root) / "bloodmnist.npz").write_bytes(b"PK half")
        raise RuntimeError("Automatic download failed!")

    monkeypatch.setattr(medmnist.BloodMNIST, "download", download)
    with pytest.raises(InputError, match=r"bloodmnist\.npz in .* could not be downloaded\. Copy the file"):
        load("bloodmnist", root=tmp_path)
    assert not list((tmp_path / "medmnist").iterdir())


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bloodmnist.npz"
    write_set(file)
    file.write_bytes(file.read_bytes()[:10000])
    with pytest.raises(InputError, match=r"bloodmnist\.npz is damaged"):
        load("bloodmnist", root=tmp_path)


def test_a_label_outside_the_official_classes_is_named(tmp_path: Path) -> None:
    write_set(tmp_path / "bloodmnist.npz", classes=9)
    with pytest.raises(InputError, match=r"train_labels\[8\] is 8, but the 8 classes are numbered 0\.\.7"):
        load("bloodmnist", root=tmp_path)


def test_the_names_are_medmnists_two_dimensional_sets() -> None:
    names = {name for name in SOURCES.names() if SOURCES.of(name) is MedMNIST}
    assert names == {name for name in medmnist.INFO if not name.endswith("3d")}


def test_pneumoniamnist_is_read(shared_folder: Path) -> None:
    root = shared_folder / "datasets"
    if not (root / "medmnist" / "pneumoniamnist.npz").is_file():
        pytest.skip(f"pneumoniamnist.npz is not in {root}")
    dataset = load("pneumoniamnist", root=root, download=False)
    dataset.validate()
    assert dataset.train_images.shape == (4708 + 524, 1, 28, 28)
    assert dataset.test_images.shape == (624, 1, 28, 28)
    assert dataset.class_names == ("normal", "pneumonia")
