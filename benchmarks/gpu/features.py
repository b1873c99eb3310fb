"""CIFAR-10 from a network that saw only images of programs: features of all levels, and private heads on them."""

import io
import lzma
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine.aggregation.records import Records, Whitening
from terrine.aggregation.sums import Gradients, Moments, mu_left
from terrine.models.deformations import Deformations
from terrine.models.lda_projection import invariant_projection
from terrine.privacy.noise import ReplayNoise

CLASSES = 10
PARTS = (2, 2, 2, 2)
"""Output size, per side, of the average pooling of each level's map."""


def cifar(archive: Path) -> dict[str, np.ndarray]:
    """Return the JPEG copy: train and test images, uint8 [N, 3, 32, 32], and labels, in a random order."""
    from PIL import Image

    names, contents = [], []
    with lzma.open(archive) as stream, tarfile.open(fileobj=stream) as tar:
        for member in tar:
            if member.isfile() and member.name.endswith(".jpg"):
                names.append(member.name)
                contents.append(tar.extractfile(member).read())  # type: ignore[union-attr]
    with ThreadPoolExecutor() as pool:
        pixels = list(pool.map(lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), contents))
    images = np.stack(pixels).transpose(0, 3, 1, 2)
    split = np.array([name.split("/")[-3] for name in names])
    kinds = np.array([name.split("/")[-2] for name in names])
    _, labels = np.unique(kinds, return_inverse=True)
    found = {}
    for part in ("train", "test"):
        rows = np.flatnonzero(split == part)
        rows = rows[np.random.default_rng(0).permutation(len(rows))]
        found[f"{part}_images"], found[f"{part}_labels"] = np.ascontiguousarray(images[rows]), labels[rows]
    return found


class Levels(nn.Module):
    """The maps of a ResNet's four levels, averaged over parts and over an image and its mirror image."""

    def __init__(self, network: nn.Module, parts: tuple[int, ...] = PARTS) -> None:
        super().__init__()
        self.network, self.parts = network, parts

    def forward(self, images: Tensor) -> Tensor:
        return (self._one(images) + self._one(images.flip(-1))) / 2

    def _one(self, images: Tensor) -> Tensor:
        own = self.network
        maps = own.maxpool(own.relu(own.bn1(own.conv1(images))))
        rows = []
        for parts, level in zip(self.parts, (own.layer1, own.layer2, own.layer3, own.layer4), strict=True):
            maps = level(maps)
            if parts:
                rows.append(F.adaptive_avg_pool2d(maps.float(), parts).flatten(1))
        return torch.cat(rows, 1)


@torch.no_grad()
def features(network: nn.Module, images: np.ndarray, device: torch.device, batch: int = 1000) -> Tensor:
    """Return float32 features [N, D] of uint8 images, on `device`."""
    network.eval()
    rows = []
    for first in range(0, len(images), batch):
        part = torch.from_numpy(images[first : first + batch]).to(device).float() / 255
        if device.type == "cuda":
            part = part.contiguous(memory_format=torch.channels_last)
        rows.append(network(part).float())
    return torch.cat(rows)


def ridge_accuracy(train: Tensor, labels: np.ndarray, test: Tensor, truth: np.ndarray) -> float:
    """Return the accuracy in per cent of ridge regression without noise, the best of four penalties on `test`."""
    mean, deviation = train.mean(0), train.std(0) + 1e-6
    left, right = ((rows - mean) / deviation for rows in (train, test))
    targets = F.one_hot(torch.from_numpy(labels).to(left.device), CLASSES).double() - 1 / CLASSES
    second = (left.T @ left).double()
    label = left.T.double() @ targets
    best = 0.0
    identity = torch.eye(len(second), dtype=torch.float64, device=left.device)
    for penalty in (1e-4, 1e-3, 1e-2, 1e-1):
        head = torch.linalg.solve(second + penalty * len(left) * identity, label)
        guess = (right @ head.float()).argmax(1).cpu().numpy()
        best = max(best, float((guess == truth).mean()))
    return round(100 * best, 2)


@torch.no_grad()
def projection(network: nn.Module, public: np.ndarray, dimension: int, device: torch.device) -> dict[str, Tensor]:
    """Return mean, deviation and projection [D, dimension] to what deformations of public images leave."""
    rows = features(network, public, device)
    mean, deviation = rows.mean(0), rows.std(0, correction=0) + 1e-5
    batches = np.array_split(np.arange(len(public)), max(1, len(public) // 500))

    def standardised(images: Tensor) -> Tensor:
        return (network(images) - mean) / deviation

    matrix = invariant_projection(
        standardised,
        public,
        batches,
        min(dimension, rows.shape[1], len(public)),
        seed=0,
        device=device,
        deformations=Deformations(rotation=10, scale=0.15, shift=0.15),
    )
    return {"mean": mean, "deviation": deviation, "matrix": matrix.to(device)}


def private_accuracies(
    arrays: dict[str, np.ndarray], mechanisms: tuple[str, ...], epsilons: tuple[float, ...], seeds: tuple[int, ...]
) -> list[dict[str, float | str]]:
    """Return the accuracy of heads from sums with noise, by mechanism, replace-one ε at δ = 1e-5, and seed.

    arrays: `train` and `test` features, their labels, and features of `public` images.
    """
    whitening = Whitening.fit(arrays["public"])
    train, test = whitening.vectors(arrays["train"]), whitening.vectors(arrays["test"])
    records = Records.of(train, arrays["train_labels"], np.arange(len(train)), CLASSES)
    found: list[dict[str, float | str]] = []
    for epsilon in epsilons:
        mu = mu_left(epsilon, 1e-5)
        for name in mechanisms:
            mechanism = Gradients() if name == "gradients" else Moments()
            for seed in seeds:
                head = mechanism.head(mechanism.release(records, mu, ReplayNoise(seed)), mu)
                accuracy = float(((test @ head).argmax(1) == arrays["test_labels"]).mean())
                found.append(
                    {"mechanism": name, "epsilon": epsilon, "seed": seed, "accuracy": round(100 * accuracy, 2)}
                )
    return found
