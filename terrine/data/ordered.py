"""Ordered labels: grades (0 < 1 < 2), or numbers (age, ejection fraction) in bins.

A grade is a class with a rank. A number becomes the bin that contains it, and each bin is a class: teachers vote on
bins, and every mechanism releases answers about them at the same cost. Afterwards the student's probabilities of
the bins are combined into a number, which is post-processing.

**Edges are public.** They name the classes and are part of the release ID. Edges computed from private data (quantiles,
minimum, maximum) would let one record move an edge without any noise. Edges must therefore be declared in advance, so
the output does not reveal which bins are empty.

    >>> ages = Scale.from_settings(bins=(0, 20, 40, 60))
    >>> ages.names, ages.places(np.array([19.9, 20, 60])).tolist()
    (('0 to 20', '20 to 40', '40 to 60'), [0, 1, 2])
    >>> ages.numbers(np.array([[0.5, 0.25, 0.25]])).tolist()
    [20.0]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from terrine.data.findings import SeveralFindings, are_names
from terrine.data.labels import Place
from terrine.errors import InputError
from terrine.settings import Settings


@dataclass(frozen=True)
class Scale:
    """K ordered classes: named grades, or bins between K + 1 rising edges.

    A bin contains its lower edge; the last bin also contains its upper edge.
    """

    names: tuple[str, ...]
    edges: tuple[float, ...] = ()

    @classmethod
    def from_settings(cls, grades: Sequence[str] = (), bins: Sequence[float] = ()) -> Scale:
        """Return the scale of these grades, or of bins between these edges."""
        if not bins:
            return cls(tuple(grades))
        return cls(tuple(f"{low:g} to {high:g}" for low, high in pairwise(bins)), tuple(bins))

    @property
    def middles(self) -> np.ndarray:
        """Number of each class, float64 [K]: the centre of a bin, or the rank of a grade from 0."""
        if not self.edges:
            return np.arange(len(self.names), dtype=float)
        return (np.array(self.edges[1:]) + self.edges[:-1]) / 2

    def describe(self) -> dict[str, Any]:
        """Return the manifest entry in addition to the class names, as JSON values."""
        return {"edges": list(self.edges)}

    @property
    def span(self) -> float:
        """Largest possible error of a predicted number: the distance between the outer edges."""
        return self.edges[-1] - self.edges[0] if self.edges else len(self.names) - 1.0

    def closeness(self, predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Return 1 minus the error of each number as a fraction of the largest possible one, float64 [N] in [0, 1]."""
        return np.asarray(np.clip(1 - np.abs(predicted - truth) / self.span, 0, 1), dtype=np.float64)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Return the bin of each number, int64. Numbers outside the edges belong to the first or last bin."""
        return np.searchsorted(self.edges[1:-1], numbers, side="right").astype(np.int64)

    def classes(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the median class of each row [B, K], which has the smallest expected error, int64 [B]."""
        return (np.cumsum(probabilities, axis=1) >= 0.5 * probabilities.sum(axis=1, keepdims=True)).argmax(axis=1)

    def numbers(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the predicted number of each row of probabilities [B, K], float64 [B].

        For bins it is the median of their distribution, uniform within each bin; for grades their mean rank.
        """
        if not self.edges:
            return np.asarray(probabilities @ self.middles, dtype=np.float64)
        place, shares = self.classes(probabilities), np.asarray(probabilities, np.float64)
        shares = shares / shares.sum(axis=1, keepdims=True)
        row = np.arange(len(shares))
        within = shares[row, place]
        below = np.cumsum(shares, axis=1)[row, place] - within
        edges = np.array(self.edges)
        part = np.clip((0.5 - below) / within, 0, 1)  # because of rounding if the share is tiny
        return np.asarray(edges[place] + part * np.diff(edges)[place])


class InOrder(Settings):
    """Settings of sources whose labels may be ordered."""

    grades: tuple[str, ...] = Field(())
    """Names of all classes in ascending order if they are grades ([none, mild, severe]). The student then takes the
    distance between classes into account (docs/targets.md). Empty: classes have no order."""
    bins: tuple[float, ...] = Field(())
    """Ascending bin edges for numeric labels such as ages ([0, 20, 40, 60, 80, 100]). The student then predicts a
    number. Edges are public: choose them from the quantity, never from your data. Empty: labels are names."""
    outside: Literal["refuse", "clip"] = "refuse"
    """Labels outside the bins: refuse stops reading; clip moves them to the nearest edge, with a warning."""

    @field_validator("grades", mode="before")
    @classmethod
    def _grades_as_text(cls, value: Any) -> Any:
        plain = isinstance(value, list | tuple) and all(isinstance(name, str | int) for name in value)
        return [str(name) for name in value] if plain else value

    @field_validator("grades")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not are_names(value):
            raise ValueError(f"{list(value)} must be two or more distinct names, from the lowest to the highest")
        return value

    @field_validator("bins")
    @classmethod
    def _rising(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        rising = all(low < high for low, high in pairwise(value))
        names = Scale.from_settings(bins=value).names
        if 0 < len(value) < 3 or not rising or not all(map(math.isfinite, value)) or len(set(names)) < len(names):
            raise ValueError(
                f"{list(value)} must be three or more finite edges of bins, each above the previous one in its first "
                "six digits"
            )
        return value

    @model_validator(mode="after")
    def _one_type_of_label(self) -> Self:
        given = [name for name in ("findings", "classes", "grades", "bins") if getattr(self, name, None)]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} are different types of labels. Set only one of them")
        if self.outside == "clip" and not self.bins:
            raise ValueError("outside=clip requires bins. Set bins, or remove it")
        return self

    @property
    def scale(self) -> Scale | None:
        """Order of the classes, or None if the settings declare none."""
        return Scale.from_settings(self.grades, self.bins) if self.grades or self.bins else None

    def check(self, run: Any) -> None:
        """Raise ValueError if other settings of the run do not support ordered labels."""
        key = "data.bins" if self.bins else "data.grades"
        if self.scale is not None and run.transcription is not None:
            raise ValueError(f"{key} is not supported by transcription, whose model has unordered classes. Remove it")
        if self.scale is not None and run.aggregation.where == "parties":
            raise ValueError(
                f"{key} is not supported by aggregation.where=parties, whose terms contain unordered classes. Set "
                "aggregation.where=local, or remove it"
            )
        if self.bins and run.evaluation.released_subgroups:
            raise ValueError(
                "evaluation.released_subgroups releases accuracies of classes, but data.bins defines numbers. Remove it"
            )
        super().check(run)


class OrderedLabels(InOrder, SeveralFindings):
    """Settings of sources whose labels may be ordered or consist of several findings."""


def read_numbers(labels: Sequence[Any], source: InOrder, place: Place) -> tuple[np.ndarray, int]:
    """Return labels as numbers within the outer edges of `source.bins`, float64 [N], and the number of clipped ones.

    Args:
        labels: N texts or numbers.
        source: Settings of the data.
        place: Location of a label for errors.

    Raises:
        InputError: a label is not a finite number, or is beyond the edges with `outside: refuse`.
    """
    numbers = np.empty(len(labels))
    for row, label in enumerate(labels):
        try:
            numbers[row] = float(label)
        except ValueError:
            numbers[row] = math.nan
        if not math.isfinite(numbers[row]):
            raise InputError(
                f"{place(row)}: the label is '{label}', but data.bins requires numbers, with a decimal point."
            )
    low, high = source.bins[0], source.bins[-1]
    beyond = np.flatnonzero((numbers < low) | (numbers > high))
    if len(beyond) and source.outside == "refuse":
        raise InputError(
            f"{place(int(beyond[0]))}: the label is {numbers[beyond[0]]:g}, beyond data.bins, from {low:g} to {high:g} "
            f"({len(beyond):,} such labels). Correct them, choose edges that cover every possible value, or set "
            "data.outside=clip."
        )
    return np.clip(numbers, low, high), len(beyond)


def clipping_warning(clipped: int, records: int) -> tuple[str, ...]:
    """Return a warning for the data owner about labels beyond the edges, or nothing. Private."""
    if not clipped:
        return ()
    return (f"{clipped:,} of {records:,} labels are beyond data.bins and were clipped (data.outside=clip).",)
