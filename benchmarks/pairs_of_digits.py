"""Images with several findings, from MNIST: two digits side by side, and for each of ten digits whether it is there.

    python benchmarks/pairs_of_digits.py ROOT pairs.npz 20000    # ROOT: where MNIST lies, or is downloaded to

What is measured on them is in docs/targets.md.
"""

import sys
from pathlib import Path

import numpy as np

from terrine.data.source import load_dataset

SIDE, TEST = 28, 3000


def pairs(images: np.ndarray, labels: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 [count, 1, 56, 56], of two digits each that no other has, and findings [count, 10]."""
    generator = np.random.default_rng(seed)
    chosen = generator.permutation(len(images))[: 2 * count].reshape(count, 2)
    canvas, found = np.zeros((count, 1, 2 * SIDE, 2 * SIDE), np.uint8), np.zeros((count, 10), np.int64)
    for place in (0, 1):
        tops = generator.integers(0, SIDE + 1, count)
        lefts = np.clip(SIDE * place + generator.integers(-2, 3, count), 0, SIDE)
        for number, (digit, top, left) in enumerate(zip(chosen[:, place], tops, lefts, strict=True)):
            part = canvas[number, 0, top : top + SIDE, left : left + SIDE]
            np.maximum(part, images[digit, 0], out=part)
        found[np.arange(count), labels[chosen[:, place]]] = 1
    return canvas, found


def main(root: str, path: str, count: str) -> None:
    """Write the npz file."""
    data = load_dataset("mnist", root=Path(root))
    train, test = pairs(data.train_images, data.train_labels, int(count), 1), pairs(*data.test, TEST, 2)
    np.savez_compressed(
        path,
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
        class_names=np.array([f"digit {number}" for number in range(10)]),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
