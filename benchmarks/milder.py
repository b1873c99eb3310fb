"""Choose the size of deformations and the penalty of teachers with deformed copies, on held-out training records.

    python benchmarks/milder.py [--root FOLDER] [--work FOLDER] [--repeats 2] [--data digits PneumoniaMNIST …]

Training records of digits, PneumoniaMNIST, MNIST and, where ROOT/cifar10_jpeg has its class folders, CIFAR-10 in grey,
cut in two; scattering features of each image by itself, under moments released for 5 % of ε = 6; ridge teachers on the
one part, noise at which T·μ/K is 60, replayed, and a linear student judged on the other part. No test image is read.
Penalties are those of all rows: 0.3 with two copies is 0.1 for each. Features are kept in `--work`.
"""

from pathlib import Path

import numpy as np
import torch
from cells import KEPT, common_options, datasets, heading, row, spread

import terrine as tr
from terrine.aggregation.votes import count_votes
from terrine.data.partition import iid
from terrine.heads import predict
from terrine.models.backbone import as_float, features_in_batches, features_one_by_one
from terrine.models.deformations import Deformations, deform
from terrine.models.released_statistics import bound_for, set_statistics, statistics_from, unit_vectors
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit
from terrine.teachers.linear import train_heads, vote

QUERIES, AMPLE, COPIES = 6_000, 60, 2
DATA = {  # records to learn from and held out, features, teachers, and every how manieth query is asked
    "digits": (1_196, 239, 80, 60, 1),
    "PneumoniaMNIST": (4_360, 872, 200, 100, 2),
    "MNIST": (16_000, 4_000, 200, 300, 2),
    "CIFAR-10 in grey": (16_000, 4_000, 200, 300, 2),
}
AMOUNTS = {
    "what features may forget": Deformations(),
    "half of it": Deformations(rotation=7.5, scale=0.06, shear=0.1, shift=1 / 14),
    "shifts of half": Deformations(rotation=0, scale=0, shear=0, shift=1 / 14),
}
CHOICES = [("none", 0.1), *((name, penalty) for name in AMOUNTS for penalty in (0.1, 0.3))]


def features(name: str, root: Path, work: Path) -> dict[str, np.ndarray]:
    """Features of queries, of records, of each copy of these, and of what is held out."""
    path = work / f"{name}.npz"
    if path.is_file():
        with np.load(path) as kept:
            return dict(kept)
    own, held, projection, *_ = DATA[name]
    if name == "digits":
        data = tr.load_dataset("digits")
    elif name == "CIFAR-10 in grey":
        data = tr.load_dataset("folder", path=root / "cifar10_jpeg", size=32, channels=1)
    else:
        data = tr.load_dataset(name.lower(), root=root)
    order = np.random.default_rng(5).permutation(data.records)
    learnt, rest = np.sort(order[:own]), np.sort(order[own : own + held])
    images = np.ascontiguousarray(data.train_images[learnt])
    queries = tr.draw({"dead_leaves": 1, "stylegan": 1}, count=QUERIES, like=data)
    backbone = tr.Scattering(projection=projection, invariance=True).fit(queries)
    made = {"queries": features_in_batches(backbone, queries.inputs, queries.batches, "current", "cpu")}
    mean = ClippedMean.for_share(0.05, 6, 1e-5)
    bound = bound_for(backbone, None, mean.noise_multiplier)
    units = unit_vectors(backbone, images, np.arange(own), bound)
    released = mean.mean(mean.release(units, ReplayNoise(0)))
    set_statistics(backbone, statistics_from(backbone, *released, bound))

    def each(of: np.ndarray) -> np.ndarray:
        return np.concatenate(list(features_one_by_one(backbone, of, np.copy)))

    made |= {"train": each(images), "held": each(np.ascontiguousarray(data.train_images[rest]))}
    for amount, deformations in AMOUNTS.items():
        for copy in range(COPIES):
            generator = torch.Generator().manual_seed(100 + copy)
            moved = np.empty_like(images)
            for first in range(0, own, 500):
                levels = deform(as_float(torch.from_numpy(images[first : first + 500])), deformations, generator)
                moved[first : first + 500] = (levels * 255).round().clamp(0, 255).to(torch.uint8).numpy()
            made[f"{amount} {copy}"] = each(moved)
    made |= {"labels": data.train_labels[learnt], "held_labels": data.train_labels[rest]}
    work.mkdir(parents=True, exist_ok=True)
    np.savez(path, **made)
    return made


def accuracies(kept: dict[str, np.ndarray], name: str, amount: str, penalty: float, repeats: int) -> list[float]:
    """Accuracy on what was held out, a number for each draw of the noise."""
    *_, teachers, step = DATA[name]
    labels, queries = kept["labels"].astype(np.int64), kept["queries"][::step]
    classes = int(labels.max()) + 1
    _, parts = np.unique(iid(len(labels), teachers, seed=0), return_inverse=True)
    teachers = int(parts.max()) + 1
    copies = [] if amount == "none" else [kept[f"{amount} {copy}"] for copy in range(COPIES)]
    rows, times = np.concatenate([kept["train"], *copies]), 1 + len(copies)
    heads = train_heads(
        rows,
        np.tile(labels, times),
        np.tile(parts, times),
        list(range(teachers)),
        classes,
        tr.LinearTeachers(ridge=penalty),
        seed=0,
    )
    counts, sigma = count_votes(vote(heads, queries), classes), (2 * len(queries)) ** 0.5 * teachers / AMPLE / classes
    found = []
    for seed in range(repeats):
        noisy = counts + ReplayNoise(seed).gaussian(counts.shape, sigma)
        head = fit(queries, histogram_answers(noisy, teachers, sigma), seed=0)
        found.append(float((predict(head, kept["held"]).argmax(axis=1) == kept["held_labels"]).mean()))
    return found


def main() -> None:
    parser = common_options(__doc__, root=datasets(), work=KEPT / "milder", repeats=2)
    parser.add_argument("--data", choices=list(DATA), nargs="+", default=list(DATA))
    options = parser.parse_args()
    heading("data", *(f"{amount}, {penalty}" for amount, penalty in CHOICES))
    for name in options.data:
        if name == "CIFAR-10 in grey" and not (options.root / "cifar10_jpeg").is_dir():
            continue
        kept = features(name, options.root, options.work)
        row(name, *(spread(accuracies(kept, name, *choice, options.repeats)) for choice in CHOICES))


if __name__ == "__main__":
    main()
