"""Public images in the batches that share their statistics: what teachers are asked about, and students learn from."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from terrine.npy import Rows


@dataclass(frozen=True, eq=False)
class Queries:
    """What teachers are asked about, in the fixed batches that all of them see.

    inputs   uint8 images [queries, C, H, W], a table's rows or features, float32 [queries, F]; rows that lie in files
             are read when they are indexed
    batches  index arrays; the images of one batch share their statistics
    sources  the name of each batch's source
    origin   the settings that they were drawn with, as JSON values; empty where they come from elsewhere
    """

    inputs: Rows
    batches: Sequence[np.ndarray]
    sources: Sequence[str] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def images(self) -> Rows:
        """The images, or a table's rows."""
        return self.inputs

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the images and their batches, as hex: they are public."""
        content = hashlib.sha256(f"{self.inputs.dtype.str} {self.inputs.shape}".encode())
        for batch in self.batches:
            content.update(f" {len(batch)} ".encode() + np.ascontiguousarray(self.inputs[batch]).tobytes())
        return content.hexdigest()

    def by_source(self) -> dict[str, np.ndarray]:
        """Return the numbers of each source's images, ascending; sources in alphabetical order."""
        return {
            source: np.sort(np.concatenate([b for b, s in zip(self.batches, self.sources, strict=True) if s == source]))
            for source in sorted(set(self.sources))
        }

    def describe(self) -> dict[str, Any]:
        """Return what they are known by: the settings they were drawn with, or else their digest."""
        return dict(self.origin) or {"sha256": self.digest}


def shares(count: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Return how many of `count` each source gets: whole numbers that add up (largest remainders)."""
    total = sum(weights.values())
    exact = {kind: count * weight / total for kind, weight in weights.items()}
    counts = {kind: int(value) for kind, value in exact.items()}
    rest = sorted(exact, key=lambda kind: (counts[kind] - exact[kind], kind))
    for kind in rest[: count - sum(counts.values())]:
        counts[kind] += 1
    return {kind: counts[kind] for kind in sorted(counts) if counts[kind]}


def in_turns(counts: Mapping[str, int], most: int) -> list[tuple[str, int, int]]:
    """Return batches of at most `most`, one source each: its name, where the batch starts in it, and how many.

    Sources take turns, so that a budget that ends early has asked about all of them. A stray last image joins the batch
    before it: a batch of one has no statistics.
    """
    pending = []
    for kind, count in counts.items():
        starts = list(range(0, count, most))
        if len(starts) > 1 and count - starts[-1] < 2:
            starts.pop()
        ends = [*starts[1:], count]
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            pending.append(((number + 0.5) / len(starts), kind, start, end))
    return [(kind, start, end - start) for _, kind, start, end in sorted(pending)]
