"""Figures in [0, 1] or above, and the intervals that those of classes and those of their order share."""

import math
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.special where it is used; scipy.stats would take each stage's process more than a second

CONFIDENCE = 0.95
DRAWS = 1000
"""Bootstrap samples."""


class Measured(NamedTuple):
    """A figure in [0, 1], its interval at `CONFIDENCE`, and how that was found."""

    value: float
    low: float
    high: float
    method: str


def as_json(measured: Measured | None) -> dict[str, Any] | None:
    """Return a figure by the names of its parts, None of what has none."""
    return None if measured is None else measured._asdict()


def apart(units: np.ndarray | None) -> bool:
    """Return whether no two records belong together."""
    return units is None or len(np.unique(units)) == len(units)


def owners(units: np.ndarray | None, records: int) -> np.ndarray:
    """Return the number of each record's unit, int64 [records], from 0; all are apart where there are no units."""
    return np.arange(records) if units is None else np.unique(units, return_inverse=True)[1]


def percentiles(drawn: list[np.ndarray]) -> tuple[float, float]:
    """Return the ends of the interval that bootstrap samples, [draws] each, leave at `CONFIDENCE`; NaN says nothing."""
    low, high = np.nanquantile(np.concatenate(drawn), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def wilson(value: float, count: int) -> tuple[float, float]:
    """Return Wilson's interval of a rate of so many independent records."""
    right, z = round(value * count), quantile()
    share = right / count
    scale = 2 * (count + z**2)
    middle, around = (2 * count * share + z**2) / scale, z / scale * math.sqrt(4 * count * share * (1 - share) + z**2)
    return 0.0 if right == 0 else middle - around, 1.0 if right == count else middle + around


def quantile() -> float:
    """Return how many deviations a normal interval at `CONFIDENCE` reaches to either side."""
    return float(scipy.special.ndtri((1 + CONFIDENCE) / 2))


def linearised(
    value: float, influence: np.ndarray, classes: np.ndarray, units: np.ndarray | None, method: str
) -> Measured:
    """Return a figure with the interval of its linear part, a sum over independent units.

    Args:
        influence: What each record contributes to its deviation, [records]; their sum over a class is 0.
        classes: int64 [records], 0..K-1, none of them empty.
        units: int64 [records], or None.
        method: What its interval is called where records are independent.
    """
    counts = np.bincount(classes)
    if apart(units):
        own, correction = classes, counts / np.maximum(counts - 1, 1)
        variance, smallest = float(np.bincount(own, weights=influence**2) @ correction), counts.min()
    else:
        own = owners(units, len(influence))
        sums = np.bincount(own, weights=influence)
        variance = float(np.square(sums).sum() * len(sums) / max(len(sums) - 1, 1))
        smallest = min(len(np.unique(own[classes == number])) for number in range(len(counts)))
        method = f"{method}, by groups"
    if smallest < 2 or variance < 1e-18 or not 0 < value < 1:
        return Measured(value, *wilson(value, smallest), "Wilson, of the smallest class")
    step = quantile() * np.sqrt(variance) / (value * (1 - value))
    low, high = (float(scipy.special.expit(scipy.special.logit(value) + side)) for side in (-step, step))
    return Measured(value, low, high, method)
