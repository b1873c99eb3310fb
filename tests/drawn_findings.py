"""Tiny synthetic images with several findings, each a bright patch at a fixed position on noise."""

from pathlib import Path
from typing import Any

import numpy as np

FINDINGS = ("upper left", "upper right", "lower left")
SIDE = 8


def draw(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 [count, 8, 8] and which of the findings each has, int64 [count, 3]."""
    generator = np.random.default_rng(seed)
    labels = (generator.random((count, 3)) < (0.5, 0.3, 0.4)).astype(np.int64)
    images = generator.integers(0, 60, (count, SIDE, SIDE))
    for finding, (top, left) in enumerate(((0, 0), (0, 4), (4, 0))):
        images[:, top : top + 4, left : left + 4] += 160 * labels[:, finding, None, None]
    return images.astype(np.uint8), labels


def write(path: Path, images: np.ndarray, labels: np.ndarray, test: int) -> None:
    """Write an npz file whose last `test` images are the test split."""
    names: dict[str, Any] = {"class_names": np.array(FINDINGS)}
    for split, chosen in (("train", slice(None, -test)), ("test", slice(-test, None))):
        names |= {f"{split}_images": images[chosen], f"{split}_labels": labels[chosen]}
    np.savez(path, **names)


VALUES: dict[str, Any] = {
    "data": {"name": "npz", "path": "drawn.npz", "size": SIDE, "findings": list(FINDINGS)},
    "partition": {"teachers": 90},
    "queries": {"count": 60, "batch": 30, "sources": {"dead_leaves": 1}},
    "backbone": {"projection": 40},
    "teachers": {"per_task": 40, "statistics": "original"},
    "student": {"statistics": "original"},
    "aggregation": {"mechanism": "histogram", "sigma": 5, "epsilon": 30},
    "ledger": {"account": "drawn", "epsilon": 1000},
}
"""Parameters of a run on these images."""
