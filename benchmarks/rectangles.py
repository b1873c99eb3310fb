"""Pictures that are not square: learned as they are, against stretched or padded to a square of as many pixels.

    PYTHONPATH=. python benchmarks/rectangles.py [--root FOLDER] [--work FOLDER] [--seeds 0 1 2 3 4]
                                                 [--sizes 48x32 39 39:pad] [--records 2000]

Pictures of 96 x 64, tall as X-rays often are, are drawn from MNIST's own files: two digits, one above the other, each
somewhere in its half; the class is the upper one. A seed draws pictures, queries, features and noise anew: 100 features
of scattering, standardised by 500 synthetic queries, and `moments` at ε = 4 (δ = 1e-5) with replayed noise, five times.
Accuracy is that on 1,000 other pictures, mean and deviation over seeds; so is the difference to the first size, within
a seed. Figures are kept in `--work`; what is there is not made again.
"""

from pathlib import Path

import numpy as np
from cells import KEPT, Cells, common_options, datasets, spread
from PIL import Image

import terrine as tr
from tasks.tools.features import vectors_of
from terrine.aggregation.sums import mu_left
from terrine.data.images import Fit
from terrine.determinism.randomness import numpy_generator
from terrine.models.backbone import features_in_batches
from terrine.models.one_by_one import features_one_by_one
from terrine.privacy.noise import ReplayNoise
from terrine.synthetic.queries import draw

HEIGHT, WIDTH, DIGIT = 96, 64, 36
TESTED, QUERIES, FEATURES, REPEATS = 1_000, 500, 100, 5
EPSILON, DELTA = 4, 1e-5


def digits(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return MNIST's images [N, 28, 28] and labels [N] of a part, `train` or `t10k`, from its own files."""
    images = np.fromfile(folder / f"{part}-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 28, 28)
    return images, np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8)[8:]


def pictures(mnist: Path, part: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw pictures, uint8 [count, HEIGHT, WIDTH], and their labels."""
    images, labels = digits(mnist, part)
    generator = numpy_generator(seed, part)
    drawn, classes = np.zeros((count, HEIGHT, WIDTH), np.uint8), np.empty(count, np.int64)
    for number in range(count):
        upper, lower = generator.integers(len(images), size=2)
        for half, which in enumerate((upper, lower)):
            top = half * HEIGHT // 2 + generator.integers(HEIGHT // 2 - DIGIT + 1)
            left = generator.integers(WIDTH - DIGIT + 1)
            digit = Image.fromarray(images[which]).resize((DIGIT, DIGIT), Image.Resampling.BILINEAR)
            drawn[number, top : top + DIGIT, left : left + DIGIT] = digit
        classes[number] = labels[upper]
    return drawn, classes


def figures(path: Path, said: str, seed: int) -> dict[str, float]:
    """Return the accuracy at a size, said as `48x32` or `39:pad`, mean over draws of the noise."""
    text, _, how = said.partition(":")
    sides = [int(side) for side in text.split("x")]
    fit: Fit = "pad" if how == "pad" else "stretch"
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
    parser = common_options(__doc__, root=datasets(), work=KEPT / "rectangles", seeds=[0, 1, 2, 3, 4])
    parser.add_argument("--records", type=int, default=2_000)
    parser.add_argument("--sizes", nargs="+", default=["48x32", "39", "39:pad"])
    asked = parser.parse_args()
    cells = Cells(asked.work / "accuracies.jsonl")
    found: dict[str, list[float]] = {said: [] for said in asked.sizes}
    for seed in asked.seeds:
        path = asked.work / f"pictures-{asked.records}-{seed}.npz"
        if not path.is_file():
            asked.work.mkdir(parents=True, exist_ok=True)
            arrays = {}
            for part, name, count in (("train", "train", asked.records), ("t10k", "test", TESTED)):
                arrays[f"{name}_images"], arrays[f"{name}_labels"] = pictures(
                    asked.root / "MNIST" / "raw", part, count, seed
                )
            np.savez(path, **arrays)
        for said in asked.sizes:
            key = f"{said}, {asked.records} records, seed {seed}"
            row = cells.get(key, lambda path=path, said=said, seed=seed: figures(path, said, seed))
            found[said].append(row["accuracy"])
            print(f"{key}: {100 * found[said][-1]:.2f} %", flush=True)
    first = np.array(found[asked.sizes[0]])
    for said, own in found.items():
        print(f"| {said} | {spread(own)} | {spread(np.array(own) - first, signed=True)} |")


if __name__ == "__main__":
    main()
