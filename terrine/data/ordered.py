"""Labels that have an order: grades of one thing (0 < 1 < 2), or numbers (age, ejection fraction) in bins.

A grade is a class whose place among the others means something. A number becomes the bin that it lies in, and a bin is
a class, so teachers vote on bins, records add up gradients of bins, and every mechanism answers about them at the price
of classes. What is put together again is the student's: its probabilities of K classes in a row say a number.

**Edges are public.** They are part of what is released: they name the classes, number the counts and identify the
release. Were they found in private data (quantiles, the least and the greatest value), one record could move an edge
for all to see, and no noise would cover it. So they are stated beforehand, by what is known of the quantity itself, and
which of the bins are empty is found out by nobody.

    >>> ages = Scale.of(bins=(0, 20, 40, 60))
    >>> ages.names, ages.places(np.array([19.9, 20, 60])).tolist()
    (('0 to 20', '20 to 40', '40 to 60'), [0, 1, 2])
    >>> ages.numbers(np.array([[0.5, 0.25, 0.25]])).tolist()
    [20.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from terrine.data.findings import SeveralFindings, are_names
from terrine.errors import InputError
from terrine.settings import Settings


@dataclass(frozen=True)
class Scale:
    """K classes in their order: grades by name, or bins between K + 1 rising edges.

    A bin holds its lower edge and not its upper one; the last bin holds both.
    """

    names: tuple[str, ...]
    edges: tuple[float, ...] = ()

    @classmethod
    def of(cls, grades: Sequence[str] = (), bins: Sequence[float] = ()) -> Scale:
        """Return the scale of these grades, or of bins between these edges."""
        if not bins:
            return cls(tuple(grades))
        return cls(tuple(f"{low:g} to {high:g}" for low, high in pairwise(bins)), tuple(bins))

    @property
    def middles(self) -> np.ndarray:
        """The number that each class stands for, float64 [K]: a bin's centre, or a grade's place, from 0 on."""
        return (
            (np.array(self.edges[1:]) + self.edges[:-1]) / 2 if self.edges else np.arange(len(self.names), dtype=float)
        )

    def described(self) -> dict[str, Any]:
        """Return what a manifest says of it beside the names of classes, as JSON values."""
        return {"edges": list(self.edges)}

    @property
    def span(self) -> float:
        """The largest error that there can be."""
        return self.edges[-1] - self.edges[0] if self.edges else len(self.names) - 1.0

    def closeness(self, said: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Return 1 where numbers are the true ones and 0 where no error is larger, float64 [N] from 0 to 1."""
        return np.asarray(np.clip(1 - np.abs(said - truth) / self.span, 0, 1), dtype=np.float64)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Return the bin of each number, int64: the first or the last of one outside the edges."""
        return np.searchsorted(self.edges[1:-1], numbers, side="right").astype(np.int64)

    def classes(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the median class of each row, int64 [B], of probabilities [B, K]: it has the least expected error."""
        return (np.cumsum(probabilities, axis=1) >= 0.5 * probabilities.sum(axis=1, keepdims=True)).argmax(axis=1)

    def numbers(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the number that each row of probabilities [B, K] says, float64 [B].

        Of bins their distribution's median, as if each were filled evenly; of grades their mean place.
        """
        if not self.edges:
            return np.asarray(probabilities @ self.middles, dtype=np.float64)
        place, shares = self.classes(probabilities), np.asarray(probabilities, np.float64)
        shares = shares / shares.sum(axis=1, keepdims=True)
        row = np.arange(len(shares))
        within = shares[row, place]
        below = np.cumsum(shares, axis=1)[row, place] - within
        edges = np.array(self.edges)
        part = np.clip((0.5 - below) / within, 0, 1)  # rounding of a share that is next to nothing
        return np.asarray(edges[place] + part * np.diff(edges)[place])


class InOrder(Settings):
    """Settings of sources whose labels may have an order."""

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
            raise ValueError(f"{list(value)} are not two or more names, all distinct, from the least to the greatest")
        return value

    @field_validator("bins")
    @classmethod
    def _rising(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        rising = all(low < high for low, high in pairwise(value))
        names = Scale.of(bins=value).names
        if 0 < len(value) < 3 or not rising or not all(map(math.isfinite, value)) or len(set(names)) < len(names):
            raise ValueError(
                f"{list(value)} are not the edges of two bins or more. Give three or more numbers, each above the one "
                "before by what six digits show"
            )
        return value

    @model_validator(mode="after")
    def _labels_are_of_one_kind(self) -> Self:
        kinds = {"findings": "several findings", "classes": "classes", "grades": "grades", "bins": "numbers in bins"}
        known = [name for name in kinds if hasattr(self, name)]
        given = [name for name in known if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(
                f"{given[0]} and {given[1]} do not go together: labels are "
                f"{', or '.join(kinds[name] for name in known)}. Leave out one"
            )
        if self.outside == "clip" and not self.bins:
            raise ValueError("outside=clip is for numbers in bins. Set bins, or leave it out")
        return self

    @property
    def scale(self) -> Scale | None:
        """The order of labels; None where they have none."""
        return Scale.of(self.grades, self.bins) if self.grades or self.bins else None

    def check(self, run: Any) -> None:
        """Raise ValueError if an order, or numbers in bins, mean nothing to other settings of the run."""
        key = "data.bins" if self.bins else "data.grades"
        if self.scale is not None and run.transcription is not None:
            raise ValueError(
                f"{key} is for runs whose teachers vote or whose records are summed: a transcription copies a "
                "model of classes without order. Leave it out"
            )
        if self.scale is not None and run.aggregation.where == "parties":
            raise ValueError(
                f"{key} does not go with aggregation.where=parties: terms between parties name classes and no "
                "order. Set aggregation.where=local, or leave it out"
            )
        if self.bins and run.evaluation.released_subgroups:
            raise ValueError(
                "evaluation.released_subgroups releases accuracies of classes, and data.bins makes numbers of "
                "them. Leave it out"
            )
        super().check(run)


class OrderedLabels(InOrder, SeveralFindings):
    """Settings of sources whose labels may have an order, or be several at once."""


Place = Callable[[int], object]
"""Says of a row's number what errors call it."""


def grades_of(texts: Sequence[str], scale: Scale, place: Place) -> np.ndarray:
    """Return the place of each label among the grades, int64 [N]. Raises InputError for a label that is none."""
    known = {name: number for number, name in enumerate(scale.names)}
    for row, text in enumerate(texts):
        if text not in known:
            raise InputError(
                f"{place(row)}: the label is '{text}', which is none of data.grades ({', '.join(scale.names)}). "
                "Correct it, or name all grades there."
            )
    return np.array([known[text] for text in texts], np.int64)


def numbers_of(labels: Sequence[Any], source: InOrder, place: Place) -> tuple[np.ndarray, int]:
    """Return labels as numbers within the outer edges of `source.bins`, float64 [N], and how many were beyond.

    Raises InputError for what is no number, and for one beyond unless `source.outside` clips it.
    """
    numbers = np.empty(len(labels))
    for row, label in enumerate(labels):
        try:
            numbers[row] = float(label)
        except ValueError:
            numbers[row] = math.nan
        if not math.isfinite(numbers[row]):
            raise InputError(
                f"{place(row)}: the label is '{label}', and data.bins wants numbers, with a point before decimals."
            )
    low, high = source.bins[0], source.bins[-1]
    beyond = np.flatnonzero((numbers < low) | (numbers > high))
    if len(beyond) and source.outside == "refuse":
        raise InputError(
            f"{place(int(beyond[0]))}: the label is {numbers[beyond[0]]:g}, beyond data.bins, from {low:g} to {high:g} "
            f"({len(beyond):,} such labels). Correct them, or set data.outside=clip, and they count as the outer edge. "
            "Better: edges that hold whatever may occur, not what occurs."
        )
    return np.clip(numbers, low, high), len(beyond)


def on_clipped(clipped: int, records: int) -> tuple[str, ...]:
    """Return what the data's keeper is told of labels beyond the edges, private: nothing where there are none."""
    if not clipped:
        return ()
    return (f"{clipped:,} of {records:,} labels lie beyond data.bins and count as its outer edge (data.outside=clip).",)
