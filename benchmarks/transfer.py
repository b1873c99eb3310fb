"""Shared code of the benchmarks of images and backbones: private knowledge transfer on features, and a row cache.

Teachers are ridge heads on each part's features under current statistics, the release is a Gaussian histogram with
replayed noise at an exact ε, the student a linear head: the functions that the stages call, with the settings of the
preset terrine-mnist unless a dataset is too small for them. The datasets are public benchmarks; nothing is charged.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from terrine.aggregation.gnmax import GaussianHistogram
from terrine.aggregation.votes import count_votes
from terrine.data.dataset import Dataset
from terrine.data.partition import iid
from terrine.data.source import load_dataset
from terrine.determinism.randomness import derive_seed, numpy_generator
from terrine.device import resolve_device
from terrine.heads import predict
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.backbone_files import load_backbone, save_backbone
from terrine.npy import MappedRows, Rows, Segment
from terrine.pretraining.settings import SimCLRSettings
from terrine.pretraining.simclr import pretrain
from terrine.privacy.accounting.calibrate import calibrate
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit
from terrine.synthetic.program import draw
from terrine.synthetic.shards import stretches, write_stretch
from terrine.teachers.linear import LinearHeads, LinearTeachers, train_heads, vote
from terrine.teachers.records import private_features

BATCH, DELTA, EPSILON, SIZE = 500, 1e-5, 6.0, 28
SOURCES = ("dead_leaves", "stylegan")
"""Sources of the pretraining images."""


@dataclass(frozen=True)
class Setting:
    """A dataset with its number of teachers and of queries."""

    name: str
    channels: int
    teachers: int
    queries: int

    def load(self, root: Path) -> Dataset | None:
        """Return the dataset at 28x28, or None if its files are missing."""
        common = {"size": SIZE, "channels": self.channels}
        if self.name == "blood":
            path = root / "pbc-blood" / "blood_28.npz"
            return load_dataset("npz", path=path, **common) if path.is_file() else None
        if self.name == "pneumonia":
            places = (root / "medmnist" / "pneumoniamnist.npz", root / "pneumoniamnist.npz")
            return load_dataset("pneumoniamnist", root=root, **common) if any(map(Path.is_file, places)) else None
        if self.name == "mnist" and not (root / "MNIST" / "raw").is_dir():
            return None
        return load_dataset(self.name, root=root, **common)


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("digits", channels=1, teachers=100, queries=1_000),
        Setting("mnist", channels=1, teachers=200, queries=10_000),
        Setting("blood", channels=3, teachers=100, queries=2_000),
        Setting("pneumonia", channels=1, teachers=100, queries=1_000),
    )
}


@dataclass(frozen=True)
class Taught:
    """A dataset's teachers on a backbone's features, and the features of its test images."""

    heads: LinearHeads
    test: np.ndarray
    test_labels: np.ndarray
    classes: int


def near_equal(numbers: np.ndarray) -> list[np.ndarray]:
    """Cut row numbers into near-equal batches of about 500."""
    return np.array_split(numbers, max(1, round(len(numbers) / BATCH)))


def teach(data: Dataset, backbone: Backbone, teachers: int, *, seed: int, ridge: float = 0.3) -> Taught:
    """Deal the records, and train one head a part, each part's features by itself."""
    assignment = iid(data.records, teachers, seed=seed)
    features = private_features(backbone, data.train_images, assignment, "current", most=BATCH)
    settings = LinearTeachers(ridge=ridge)
    heads = train_heads(features, data.train_labels, assignment, range(teachers), data.classes, settings, seed=seed)
    shuffled = numpy_generator(seed, "test order").permutation(len(data.test_labels))
    test = features_in_batches(backbone, data.test_images, near_equal(shuffled), "current")
    return Taught(heads, test, data.test_labels, data.classes)


def query_images(source: str, count: int, channels: int, *, seed: int) -> np.ndarray:
    """Return uint8 images [count, channels, 28, 28] of programs `A` or `A,B,...`: equal shares, one after another."""
    kinds = source.split(",")
    shares = [len(part) for part in np.array_split(np.arange(count), len(kinds))]
    own = derive_seed(seed, "queries")
    return np.concatenate(
        [
            draw(kind, seed=own, first=0, count=share, size=SIZE, channels=channels).numpy()
            for kind, share in zip(kinds, shares, strict=True)
        ]
    )


def consensus(histograms: np.ndarray) -> dict[str, float]:
    """Return the mean share of the teachers that voted for the winner (`agreement`), and e to the entropy of the
    winners (`classes`)."""
    frequency = np.bincount(histograms.argmax(axis=1)) / len(histograms)
    used = frequency[frequency > 0]
    return {
        "agreement": float(histograms.max(axis=1).mean() / histograms[0].sum()),
        "classes": float(np.exp(-np.sum(used * np.log(used)))),
    }


def transfer(taught: Taught, backbone: Backbone, images: Rows, sources: int, *, seed: int) -> dict[str, float]:
    """Vote, release noisy histograms at exact ε = 6 and train the student; return what came of it.

    images are queries of `sources` programs, one after another; no batch mixes them. `accuracy` is the student's on
    test, the other figures are of `consensus`.
    """
    parts = np.array_split(np.arange(len(images)), sources)
    batches = [batch for part in parts for batch in near_equal(part)]
    features = features_in_batches(backbone, images, batches, "current")
    histograms = count_votes(vote(taught.heads, features), taught.classes)
    teachers = len(taught.heads.weight)
    sigma = calibrate(EPSILON, DELTA, len(images)).sigma
    noise = ReplayNoise(derive_seed(seed, "replayed noise"))
    released = GaussianHistogram(sigma=sigma).answer(histograms, epsilon=EPSILON, delta=DELTA, noise=noise)
    if not released.answered.all() or released.histograms is None:
        raise RuntimeError("the calibrated noise did not pay for all queries")
    head = fit(features, histogram_answers(released.histograms, teachers, sigma), 0.3, seed=seed)
    predictions = predict(head, taught.test).argmax(axis=1)
    return {
        **consensus(histograms),
        "accuracy": float((predictions == taught.test_labels).mean()),
        "epsilon": price(released.event, DELTA),
    }


def pretrained(
    kind: str,
    channels: int,
    work: Path,
    *,
    images: int,
    epochs: int,
    batch: int = 256,
    device: str = "auto",
    **options: str,
) -> Backbone:
    """Return a backbone pretrained by SimCLR on `SOURCES`, trained now unless it lies in the work folder."""
    named = [kind, *options.values(), f"{channels}x{SIZE}", str(images), str(epochs), str(batch)]
    path = work / f"{'-'.join(named)}.safetensors"
    if not path.is_file():
        backbone = build_backbone(kind, channels=channels, size=SIZE, seed=0, **options)
        start, place = time.monotonic(), resolve_device(device)
        said = [start]

        def progress(fraction: float, text: str) -> None:
            if fraction == 1 or time.monotonic() - said[0] > 30:
                said[0] = time.monotonic()
                print(f"pretraining: {100 * fraction:.1f} %, {text}", flush=True)

        pretrain(
            backbone,
            _pretraining_images(work, images, channels),
            SimCLRSettings(epochs=epochs, batch=batch),
            seed=0,
            device=place,
            checkpoint=path.with_suffix(".checkpoint"),
            progress=progress,
        )
        save_backbone(backbone, path)
        print(f"pretrained on {place} in {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
    return load_backbone(path)


def _pretraining_images(work: Path, count: int, channels: int) -> MappedRows:
    """Draw the pretraining images into shards, or find them there; one program after another."""
    segments = []
    for kind in SOURCES:
        seed = derive_seed(0, "pretraining")
        own = count // len(SOURCES)
        folder = work / f"images-{kind}-{channels}-{own}"
        for number, stretch in enumerate(stretches(kind, count=own, seed=seed, size=SIZE, channels=channels)):
            written = write_stretch(folder / f"shard-{number:06d}.npy", stretch)
            segments.append(Segment(written.path, 0, stretch.count))
    return MappedRows(segments)
