"""Benchmarks that torchvision reads from their official files and downloads if they are missing."""

import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np

from terrine.data.dataset import Dataset
from terrine.data.images import to_uint8_nchw
from terrine.data.public import refuse_other_bytes
from terrine.data.source import Downloaded, ImageSource, Progress
from terrine.errors import InputError

# Terrine's name, the class in torchvision.datasets, and the folder of its files below the root.
CLASSES = {
    "mnist": ("MNIST", "MNIST/raw"),
    "fashion_mnist": ("FashionMNIST", "FashionMNIST/raw"),
    "cifar10": ("CIFAR10", "cifar-10-batches-py"),
    "cifar100": ("CIFAR100", "cifar-100-python"),
    "svhn": ("SVHN", ""),
}

# Sets whose classes have names; the classes of the others are digits.
_NAMED = ("fashion_mnist", "cifar10", "cifar100")


# MD5 of the unpacked files: for these sets torchvision checks only archives after a download. For the others it checks
# the files whenever it reads them.
UNPACKED = {
    "mnist": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}


class Torchvision(Downloaded, ImageSource):
    """One benchmark in its official split, from torchvision's files below `root`."""

    name: Literal["mnist", "fashion_mnist", "cifar10", "cifar100", "svhn"]

    def read(self, at: Path = Path(), seed: int = 0, progress: Progress | None = None) -> Dataset:
        root = at / self.root
        train_images, train_labels, class_names = _split(self.name, root, self.download, train=True)
        test_images, test_labels, _ = _split(self.name, root, self.download, train=False)
        arrays = {
            "train-images-idx3-ubyte": train_images,
            "train-labels-idx1-ubyte": train_labels,
            "t10k-images-idx3-ubyte": test_images,
            "t10k-labels-idx1-ubyte": test_labels,
        }
        official = all(md5_of_idx(arrays[file]) == digest for file, digest in UNPACKED.get(self.name, {}).items())
        place = str(root / CLASSES[self.name][1])
        refuse_other_bytes(self.name, place, official=official, public=self.public_benchmark)
        return Dataset(
            name=self.name,
            train_images=train_images,
            train_labels=train_labels,
            train_groups=None,
            test_images=test_images,
            test_labels=test_labels,
            class_names=class_names,
            public_benchmark=official,
            declared=True,
        )


def md5_of_idx(values: np.ndarray) -> str:
    """Return the MD5 of the IDX file of uint8 images [N, 1, H, W] or labels [N]."""
    array = np.ascontiguousarray(values[:, 0] if values.ndim == 4 else values, dtype=np.uint8)
    header = bytes([0, 0, 8, array.ndim]) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    return hashlib.md5(header + array.tobytes(), usedforsecurity=False).hexdigest()


def _split(name: str, root: Path, download: bool, train: bool) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    source = _open(name, root, download, train)
    # The labels are called `labels` in SVHN and `targets` in the others.
    labels = np.asarray(source.labels if name == "svhn" else source.targets, dtype=np.int64)
    names = tuple(source.classes) if name in _NAMED else tuple(str(digit) for digit in range(10))
    return to_uint8_nchw(np.asarray(source.data), f"{name}: images"), labels, names


def _open(name: str, root: Path, download: bool, train: bool) -> Any:
    """Return torchvision's dataset object, which downloads only missing files."""
    from terrine.vision import torchvision  # takes seconds to import

    part = {"split": "train" if train else "test"} if name == "svhn" else {"train": train}
    try:
        return getattr(torchvision.datasets, CLASSES[name][0])(root=str(root), download=download, **part)
    except Exception as error:  # no network, no space, or a parser's error on damaged files
        raise InputError(
            f"The files of {name} in {root / CLASSES[name][1]} are missing or damaged, and could not be downloaded "
            f"(data.download={str(download).lower()}: {' '.join(str(error).split())}). Copy the official files there, "
            "set data.root, or delete damaged files and set data.download=true."
        ) from error
