"""Public queries, divided into batches whose images share batch statistics."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from terrine.npy import Rows


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries in fixed batches, the same for all teachers.

    Attributes:
        inputs: uint8 images [queries, C, H, W], or a table's rows or features, float32 [queries, F]; rows in files are
            read when they are indexed.
        batches: Index arrays; the images of a batch share their statistics.
        sources: Source of each batch.
        origin: Settings of the image programs as JSON values; empty without image programs.
    """

    inputs: Rows
    batches: Sequence[np.ndarray]
    sources: Sequence[str] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def images(self) -> Rows:
        """Images, or a table's rows."""
        return self.inputs

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the images and their batches, as hex. Public."""
        content = hashlib.sha256(f"{self.inputs.dtype.str} {self.inputs.shape}".encode())
        for batch in self.batches:
            content.update(f" {len(batch)} ".encode() + np.ascontiguousarray(self.inputs[batch]).tobytes())
        return content.hexdigest()

    def by_source(self) -> dict[str, np.ndarray]:
        """Return the ascending numbers of each source's images, by source in alphabetical order."""
        return {
            source: np.sort(np.concatenate([b for b, s in zip(self.batches, self.sources, strict=True) if s == source]))
            for source in sorted(set(self.sources))
        }

    def describe(self) -> dict[str, Any]:
        """Return the settings of the image programs, or else the digest."""
        return dict(self.origin) or {"sha256": self.digest}


def shares(count: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divide `count` among sources in proportion to their weights, by largest remainders."""
    total = sum(weights.values())
    exact = {kind: count * weight / total for kind, weight in weights.items()}
    counts = {kind: int(value) for kind, value in exact.items()}
    rest = sorted(exact, key=lambda kind: (counts[kind] - exact[kind], kind))
    for kind in rest[: count - sum(counts.values())]:
        counts[kind] += 1
    return {kind: counts[kind] for kind in sorted(counts) if counts[kind]}


def in_turns(counts: Mapping[str, int], most: int) -> list[tuple[str, int, int]]:
    """Return batches of at most `most` images as (source, first image, number of images).

    Sources take turns, so that a budget that ends early covers all of them. A single last image joins the previous
    batch, because one image has no batch statistics.
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
