import hashlib
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import torch

from terrine.data.dataset import Dataset
from terrine.data.source import SOURCES, load_dataset
from terrine.data.sources.torchvision import CLASSES, UNPACKED, Torchvision
from terrine.errors import InputError
from terrine.vision import torchvision
from tests.neighbours.formats import write_idx

GENERATOR = np.random.default_rng(0)


def load(name: str, **settings: object) -> Dataset:
    """Read files that are written here: no published ones, so private."""
    return Torchvision(name=name, **{"public_benchmark": False, **settings}).read()


@pytest.fixture
def mnist(tmp_path: Path) -> dict[str, np.ndarray]:
    """A small MNIST under tmp_path, in the official file format."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    arrays = {}
    for split, count in (("train", 30), ("t10k", 20)):
        arrays[split] = GENERATOR.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{split}-images-idx3-ubyte", arrays[split])
        write_idx(folder / f"{split}-labels-idx1-ubyte", (np.arange(count) % 10).astype(np.uint8))
    return arrays


def test_official_files_are_read(tmp_path: Path, mnist: dict[str, np.ndarray]) -> None:
    dataset = load("mnist", root=tmp_path, download=False)
    dataset.validate()
    assert np.array_equal(dataset.train_images[:, 0], mnist["train"])
    assert np.array_equal(dataset.test_images[:, 0], mnist["t10k"])
    assert dataset.train_labels.tolist() == [i % 10 for i in range(30)]
    assert dataset.class_names == tuple("0123456789")
    assert not dataset.public_benchmark


def test_a_name_makes_no_other_files_public(
    tmp_path: Path, mnist: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in torchvision's own files nor in those of its earlier versions, which it prefers."""
    for settings in ({}, {"public_benchmark": True}):
        with pytest.raises(InputError, match=r"raw does not have the published digest of mnist.*data\.name=npz"):
            load_dataset("mnist", root=tmp_path, download=False, **settings)
    assert not load_dataset("mnist", root=tmp_path, public_benchmark=False).public
    digests = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in (tmp_path / "MNIST" / "raw").iterdir()}
    monkeypatch.setitem(UNPACKED, "mnist", digests)
    assert load_dataset("mnist", root=tmp_path).public
    (tmp_path / "MNIST" / "processed").mkdir()
    for name in ("training", "test"):
        other = torch.randint(0, 256, (20, 28, 28), dtype=torch.uint8), torch.arange(20) % 10
        torch.save(other, tmp_path / "MNIST" / "processed" / f"{name}.pt")
    with pytest.raises(InputError, match="published digest"):
        load_dataset("mnist", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "folder", "files"),
    [
        ("cifar10", "cifar-10-batches-py", (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta")),
        ("cifar100", "cifar-100-python", ("train", "test", "meta")),
        ("svhn", "", ("train_32x32.mat", "test_32x32.mat")),
    ],
)
def test_other_files_of_these_names_are_not_even_opened(
    tmp_path: Path, name: str, folder: str, files: tuple[str, ...]
) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    for file in files:
        (tmp_path / folder / file).write_bytes(b"a pickle that nobody may load")
    with pytest.raises(InputError, match=r"are missing or damaged"):
        load(name, root=tmp_path, download=False)


def test_the_published_files_are_public(shared_folder: Path) -> None:
    root = shared_folder / "datasets"
    if not (root / "MNIST" / "raw").is_dir():
        pytest.skip("MNIST does not lie beside the project")
    assert load_dataset("mnist", root=root, download=False).public


def test_files_that_are_missing_or_damaged_say_what_to_do(
    tmp_path: Path, mnist: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*args: object, **options: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", unreachable)
    assert load("mnist", root=tmp_path, download=True).records == 30
    with pytest.raises(InputError, match=r"mnist .*missing or damaged.*data\.download=false.*Copy the official"):
        load("mnist", root=tmp_path / "other", download=False)
    with pytest.raises(InputError, match=r"fashion_mnist .*data\.download=true: .*Copy the official"):
        load("fashion_mnist", root=tmp_path)
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"files of mnist in .*raw are missing or damaged.* delete damaged"):
        load("mnist", root=tmp_path)


def test_colour_sets_become_channels_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = GENERATOR.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    names = ["airplane", "automobile"]

    def constructor(root: str, train: bool, download: bool) -> SimpleNamespace:
        return SimpleNamespace(data=pictures, targets=[i % 2 for i in range(20)], classes=names)

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", constructor)
    dataset = load("cifar10", root=tmp_path)
    dataset.validate()
    assert np.array_equal(dataset.train_images, pictures.transpose(0, 3, 1, 2))
    assert dataset.class_names == ("airplane", "automobile")


def test_svhn_is_asked_for_by_split_and_has_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queried = []

    def constructor(root: str, split: str, download: bool) -> SimpleNamespace:
        queried.append(split)
        return SimpleNamespace(data=np.zeros((10, 3, 32, 32), dtype=np.uint8), labels=np.arange(10))

    monkeypatch.setattr(torchvision.datasets, "SVHN", constructor)
    dataset = load("svhn", root=tmp_path)
    dataset.validate()
    assert queried == ["train", "test"]
    assert dataset.class_names == tuple("0123456789")


@pytest.mark.parametrize("name", [name for name in SOURCES.names() if SOURCES.of(name) is Torchvision])
def test_every_name_is_a_class_of_torchvision(name: str) -> None:
    assert issubclass(getattr(torchvision.datasets, CLASSES[name][0]), torchvision.datasets.VisionDataset)


def test_the_real_mnist_is_read(shared_folder: Path) -> None:
    root = shared_folder / "datasets"
    if not (root / "MNIST" / "raw").is_dir():
        pytest.skip(f"MNIST is not in {root}")
    dataset = load("mnist", root=root, download=False)
    dataset.validate()
    assert dataset.train_images.shape == (60000, 1, 28, 28)
    assert dataset.test_images.shape == (10000, 1, 28, 28)
    assert np.bincount(dataset.train_labels)[:3].tolist() == [5923, 6742, 5958]
