"""Pictures that are not square: learned in their shape, or stretched, padded or cropped to a square of equal area.

    PYTHONPATH=. python benchmarks/rectangles.py [--root FOLDER] [--work FOLDER] [--seeds 0 1 2 3]
                                                 [--pictures digits photographs X-rays] [--sizes 48x32 39:stretch …]

- digits: pictures of 96 x 64, tall as X-rays often are, drawn from MNIST's own files: two digits, one above the other,
  each somewhere in its half; the class is the upper one. 2,000 to learn from.
- photographs: CIFAR-10 (a JPEG copy, ROOT/cifar10_jpeg), in grey, of each the middle 32 x 21. 4,000 to learn from.
- X-rays: PneumoniaMNIST, of each the middle 19 x 28, as chests are wider than high before MedMNIST cuts them. 4,000.

Each seed draws new pictures, queries, features and noise: 100 features of scattering, standardised by 500 synthetic
queries, and `moments` at ε = 4 (δ = 1e-5) with replayed noise, five times. Accuracy is that on up to 1,000 other
pictures, mean and deviation over seeds; so is the difference to the first size, within a seed. Figures are kept in
`--work`; what is there is not made again.
"""

import functools
from pathlib import Path
from typing import get_args

import numpy as np
from cells import KEPT, Cells, common_options, datasets, heading, row, spread
from features import vectors_of
from PIL import Image

import terrine as tr
from terrine.aggregation.sums import mu_left
from terrine.data.images import Fit
from terrine.determinism.randomness import numpy_generator
from terrine.models.backbone import features_in_batches, features_one_by_one
from terrine.privacy.noise import ReplayNoise
from terrine.synthetic.queries import draw

HEIGHT, WIDTH, DIGIT = 96, 64, 36
TESTED, QUERIES, FEATURES, REPEATS = 1_000, 500, 100, 5
SIZES = {  # the pictures' own shape first; 39 x 26 is the part of a padded square that is not black
    "digits": ["48x32", "39:stretch", "39:pad", "39:crop", "39x26", "24x16"],
    "photographs": ["32x21", "26:stretch", "26:pad", "26:crop", "26x17"],
    "X-rays": ["19x28", "23:stretch", "23:pad", "23:crop", "16x23"],
}
RECORDS = {"digits": 2_000, "photographs": 4_000, "X-rays": 4_000}
CUT = {"photographs": (32, 21), "X-rays": (19, 28)}
EPSILON, DELTA = 4, 1e-5


def digits(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return MNIST's images [N, 28, 28] and labels [N] of a part, `train` or `t10k`, from its own files."""
    images = np.fromfile(folder / f"{part}-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 28, 28)
    return images, np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8)[8:]


def arrays_of(kind: str, root: Path, seed: int) -> dict[str, np.ndarray]:
    """Return what an .npz file of the pictures holds."""
    counts, found = {"train": RECORDS[kind], "test": TESTED}, {}
    if kind == "digits":
        for part, name in (("train", "train"), ("t10k", "test")):
            found[f"{name}_images"], found[f"{name}_labels"] = drawn(root / "MNIST" / "raw", part, counts[name], seed)
        return found
    data = loaded(kind, root)
    height, width = CUT[kind]
    for name in counts:
        images, labels = getattr(data, f"{name}_images"), getattr(data, f"{name}_labels")
        some = np.sort(numpy_generator(seed, f"{kind} {name}").permutation(len(labels))[: counts[name]])
        top, left = (images.shape[2] - height) // 2, (images.shape[3] - width) // 2
        found[f"{name}_images"] = np.asarray(images[some])[:, 0, top : top + height, left : left + width]
        found[f"{name}_labels"] = labels[some]
    return found


@functools.cache
def loaded(kind: str, root: Path) -> tr.Dataset:
    """Read the pictures that are to be cut."""
    if kind == "photographs":
        return tr.load_dataset("folder", path=root / "cifar10_jpeg", size=32, channels=1)
    return tr.load_dataset("pneumoniamnist", root=root)


def drawn(mnist: Path, part: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw pictures, uint8 [count, HEIGHT, WIDTH], and their labels."""
    images, labels = digits(mnist, part)
    generator = numpy_generator(seed, part)
    canvas, classes = np.zeros((count, HEIGHT, WIDTH), np.uint8), np.empty(count, np.int64)
    for number in range(count):
        upper, lower = generator.integers(len(images), size=2)
        for half, which in enumerate((upper, lower)):
            top = half * HEIGHT // 2 + generator.integers(HEIGHT // 2 - DIGIT + 1)
            left = generator.integers(WIDTH - DIGIT + 1)
            digit = Image.fromarray(images[which]).resize((DIGIT, DIGIT), Image.Resampling.BILINEAR)
            canvas[number, top : top + DIGIT, left : left + DIGIT] = digit
        classes[number] = labels[upper]
    return canvas, classes


def figures(path: Path, said: str, seed: int) -> dict[str, float]:
    """Return the accuracy at a size, said as `48x32` or `39:pad`, mean over draws of the noise."""
    text, _, how = said.partition(":")
    sides = [int(side) for side in text.split("x")]
    fit: Fit = next((fit for fit in get_args(Fit) if fit == how), "stretch")
    data = tr.load_dataset("npz", path=path, size=sides if len(sides) == 2 else sides[0], channels=1, fit=fit)
    queries = draw({"dead_leaves": 1, "stylegan": 1}, count=QUERIES, like=data, seed=seed, batch=250)
    backbone = tr.Scattering(projection=FEATURES).fit(queries, seed=seed)
    kept = {"queries": features_in_batches(backbone, queries.inputs, queries.batches, "original")}
    for part, images in (("train", data.train_images), ("test", data.test_images)):
        kept[part] = np.concatenate(list(features_one_by_one(backbone, images, np.copy)))
    records, test, labels = vectors_of(kept | {"labels": data.train_labels, "test_labels": data.test_labels})
    kind, mu = tr.Moments(), mu_left(EPSILON, DELTA)
    heads = [kind.head(kind.release(records, mu, ReplayNoise(draws)), mu) for draws in range(REPEATS)]
    return {"accuracy": float(np.mean([(test @ head).argmax(axis=1) == labels for head in heads]))}


def main() -> None:
    parser = common_options(__doc__, root=datasets(), work=KEPT / "rectangles", seeds=[0, 1, 2, 3])
    parser.add_argument("--pictures", choices=list(SIZES), nargs="+", default=list(SIZES))
    parser.add_argument("--sizes", nargs="+", help="of all pictures; the first is what others are compared with")
    asked = parser.parse_args()
    cells = Cells(asked.work / "accuracies.jsonl")
    heading("pictures", "brought to", "accuracy, %", "less the first, within a seed")
    for kind in asked.pictures:
        first = None
        for said in asked.sizes or SIZES[kind]:
            own = np.array([measured(kind, said, seed, cells, asked.root, asked.work) for seed in asked.seeds])
            first = own if first is None else first
            row(kind, said, spread(own), spread(own - first, signed=True))


def measured(kind: str, said: str, seed: int, cells: Cells, root: Path, work: Path) -> float:
    """Return the accuracy of a seed at a size."""

    def made() -> dict[str, float]:
        path = work / f"{kind}-{RECORDS[kind]}-{seed}.npz"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, **arrays_of(kind, root, seed))
        return figures(path, said, seed)

    return cells.get(f"{kind}, {said}, {RECORDS[kind]} records, seed {seed}", made)["accuracy"]


if __name__ == "__main__":
    main()
