"""Confidence intervals of metrics."""

import math
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.special on use; importing scipy.stats takes more than a second

CONFIDENCE = 0.95
DRAWS = 1000
"""Number of bootstrap samples."""


class Measured(NamedTuple):
    """A metric, its interval at `CONFIDENCE`, and the interval's method."""

    value: float
    low: float
    high: float
    method: str


def as_json(measured: Measured | None) -> dict[str, Any] | None:
    """Return a metric as JSON values, or None."""
    return None if measured is None else measured._asdict()


def apart(units: np.ndarray | None) -> bool:
    """Return whether each record is a separate unit."""
    return units is None or len(np.unique(units)) == len(units)


def owners(units: np.ndarray | None, records: int) -> np.ndarray:
    """Return the number of each record's unit, from 0, int64 [records]; without units, the record's own number."""
    return np.arange(records) if units is None else np.unique(units, return_inverse=True)[1]


def percentiles(drawn: list[np.ndarray]) -> tuple[float, float]:
    """Return the percentile interval of bootstrap samples [draws], ignoring NaN."""
    low, high = np.nanquantile(np.concatenate(drawn), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def wilson(value: float, count: int) -> tuple[float, float]:
    """Return Wilson's interval of a rate of `count` independent records."""
    right, z = round(value * count), quantile()
    share = right / count
    scale = 2 * (count + z**2)
    middle, around = (2 * count * share + z**2) / scale, z / scale * math.sqrt(4 * count * share * (1 - share) + z**2)
    return 0.0 if right == 0 else middle - around, 1.0 if right == count else middle + around


def quantile() -> float:
    """Return the half-width of a normal interval at `CONFIDENCE` in standard deviations."""
    return float(scipy.special.ndtri((1 + CONFIDENCE) / 2))


def linearised(
    value: float, influence: np.ndarray, classes: np.ndarray, units: np.ndarray | None, method: str
) -> Measured:
    """Return a metric with an interval from the influence of independent units.

    Args:
        value: The metric.
        influence: Influence of each record on the metric [records]; sums to 0 over each class.
        classes: int64 [records], 0..K-1, none of them empty.
        units: Unit of each record, int64 [records], or None if all are independent.
        method: Name of the interval for independent records.
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
