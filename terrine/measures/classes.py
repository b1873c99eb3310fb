"""Metrics for imbalanced classes: balanced accuracy, AUC, and sensitivity at a given specificity.

Each metric has a 95 % interval over samples of the same size. Metrics of private records are private: no ε covers them.

- A rate of independent records has Wilson's interval (Wilson 1927); a mean of rates has a combination of these
  intervals (Zou & Donner 2008).
- An AUC has the interval of DeLong et al. 1988 on the logit scale, so that it stays within [0, 1].
- With several records per patient, each record's influence is first summed over the patient (Obuchowski 1997).
- A sensitivity at a given specificity has a percentile interval over `DRAWS` bootstrap samples, of records within
  classes or of whole patients (Efron & Tibshirani 1993), each sample with its own threshold.
- If nothing varies, for example without errors, these intervals would be empty. Then Wilson's interval for the number
  of units in the smallest class is used, because an AUC varies at most as much as such a rate (van Dantzig 1951).

Each class is scored by its odds against all others, and the AUC of several classes is their mean (one-vs-rest, macro).
Classes without records are left out.

    >>> auc(np.array([False, False, True, True]), np.array([0.1, 0.4, 0.35, 0.8])).value
    0.75
"""

from typing import Any

import numpy as np

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError
from terrine.measures.intervals import (
    CONFIDENCE,
    DRAWS,
    Measured,
    apart,
    as_json,
    linearised,
    owners,
    percentiles,
    wilson,
)

BINS = 15
_BLOCK = 1 << 23
"""Number of bootstrap weights in memory."""


def rate(right: np.ndarray, units: np.ndarray | None = None) -> Measured | None:
    """Return the share of true values, such as an accuracy or sensitivity, or None without records.

    Args:
        right: bool [records].
        units: Unit of each record, int64 [records], or None if all are independent.
    """
    if not len(right):
        return None
    value = float(right.mean())
    if apart(units):
        return Measured(value, *wilson(value, len(right)), "Wilson")
    return linearised(value, (right - value) / len(right), np.zeros(len(right), np.int64), units, "linearised")


def balanced_accuracy(labels: np.ndarray, predictions: np.ndarray, units: np.ndarray | None = None) -> Measured:
    """Return the mean over classes of the share of a class's records that are predicted correctly.

    Args:
        labels: int64 [records].
        predictions: int64 [records].
        units: Unit of each record, int64 [records], or None if all are independent.
    """
    present, own = np.unique(labels, return_inverse=True)
    right, counts = labels == predictions, np.bincount(own)
    shares = np.bincount(own, weights=right) / counts
    value = float(shares.mean())
    if not apart(units):
        return linearised(value, (right - shares[own]) / counts[own] / len(present), own, units, "linearised")
    low, high = np.transpose([wilson(share, count) for share, count in zip(shares, counts, strict=True)])
    down, up = (float(np.sqrt(np.square(end - shares).sum()) / len(present)) for end in (low, high))
    return Measured(value, max(value - down, 0.0), min(value + up, 1.0), "Wilson")


def auc(positive: np.ndarray, scores: np.ndarray, units: np.ndarray | None = None) -> Measured | None:
    """Return the area under the ROC curve, or None if all records are positive or all negative.

    Args:
        positive: bool [records].
        scores: float [records].
        units: Unit of each record, int64 [records], or None if all are independent.
    """
    if positive.all() or not positive.any():
        return None
    return linearised(*_area(positive, scores), positive.astype(np.int64), units, "DeLong")


def macro_auc(labels: np.ndarray, probabilities: np.ndarray, units: np.ndarray | None = None) -> Measured | None:
    """Return the mean over classes of the AUC of a class against all others, or None for a single class.

    Args:
        labels: int64 [records].
        probabilities: float [records, classes].
        units: Unit of each record, int64 [records], or None if all are independent.
    """
    present, own = np.unique(labels, return_inverse=True)
    if len(present) < 2:
        return None
    areas = [_area(labels == number, odds(probabilities, number)) for number in present]
    value = np.mean([area for area, _ in areas])
    influence = np.mean([moved for _, moved in areas], axis=0)
    return linearised(float(value), influence, own, units, "DeLong")


def sensitivity_at(
    positive: np.ndarray, scores: np.ndarray, specificity: float = 0.9, units: np.ndarray | None = None
) -> Measured | None:
    """Return the sensitivity at the lowest threshold with at least the given specificity.

    Returns None if all records are positive or all negative.

    Args:
        positive: bool [records].
        scores: float [records].
        specificity: Share of negative records at or below the threshold.
        units: Unit of each record, int64 [records], or None if all are independent.
    """
    if positive.all() or not positive.any():
        return None
    own = owners(units, len(positive))
    strata = [np.flatnonzero(part) for part in (positive, ~positive)] if apart(units) else [np.unique(own)]
    others = np.flatnonzero(~positive)
    others = others[np.argsort(scores[others], kind="stable")]

    def sensitivity(weights: np.ndarray) -> np.ndarray:
        """Return the sensitivity for weights of units [draws, units], or NaN without positive or negative units."""
        stay = np.cumsum(weights[:, own[others]], axis=1, dtype=np.int32)
        place = (stay >= specificity * stay[:, -1:] * (1 - 1e-12)).argmax(axis=1)
        above = scores[positive] > scores[others[place]][:, None]
        found = weights[:, own[positive]]
        total = np.where(stay[:, -1] > 0, found.sum(axis=1), 0)
        return np.divide((found * above).sum(axis=1), total, out=np.full(len(found), np.nan), where=total > 0)

    value = float(sensitivity(np.ones((1, own.max() + 1), np.int16))[0])
    generator, found, size = numpy_generator(0, "bootstrap"), [], max(1, _BLOCK // len(positive))
    for first in range(0, DRAWS, size):
        weights = np.zeros((min(size, DRAWS - first), own.max() + 1), np.int16)
        for members in strata:
            for row in weights:
                row[members] = np.bincount(generator.integers(len(members), size=len(members)), minlength=len(members))
        found.append(sensitivity(weights))
    low, high = percentiles(found)
    if low == high:
        return Measured(value, *wilson(value, len(np.unique(own[positive]))), "Wilson, of its own units")
    return Measured(value, low, high, f"bootstrap of {'records' if apart(units) else 'groups'}")


def odds(probabilities: np.ndarray, number: int) -> np.ndarray:
    """Return a class's odds against all others [records]; they differ even if probabilities near 1 are rounded to 1."""
    others = np.delete(probabilities, number, axis=1).sum(axis=1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(probabilities[:, number] / others)


def calibration_error(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the expected calibration error (Guo et al. 2017) with `BINS` bins.

    Args:
        labels: int64 [records].
        probabilities: float [records, classes].
    """
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    return float(np.abs(np.bincount(place, weights=right - sure.astype(np.float64))).sum() / len(labels))


def measures(
    labels: np.ndarray,
    probabilities: np.ndarray,
    class_names: list[str],
    units: np.ndarray | None = None,
    specificity: float = 0.9,
    predictions: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return all metrics of a classifier with their intervals, as JSON values.

    Args:
        labels: int64 [records].
        probabilities: float [records, classes].
        class_names: Names of the classes.
        units: Unit of each record, int64 [records], or None if all are independent.
        specificity: Specificity at which sensitivities are computed.
        predictions: Predicted classes, int64 [records]; None for the most probable classes.

    Raises:
        InputError: the shapes differ, or there is no record.
    """
    if not len(labels) or probabilities.shape != (len(labels), len(class_names)):
        raise InputError(
            f"{len(class_names)} classes need probabilities [records, {len(class_names)}] and labels [records], at "
            f"least one; got shapes {list(probabilities.shape)} and {list(labels.shape)}."
        )
    predictions = probabilities.argmax(axis=1) if predictions is None else predictions
    by_class = []
    for number, name in enumerate(class_names):
        positive, score = labels == number, odds(probabilities, number)
        own = None if units is None else units[positive]
        by_class.append(
            {
                "class": name,
                "sensitivity": as_json(rate(predictions[positive] == number, own)),
                "auc": as_json(auc(positive, score, units)),
                "sensitivity_at_specificity": as_json(sensitivity_at(positive, score, specificity, units)),
            }
        )
    return {
        "confidence": CONFIDENCE,
        "specificity": specificity,
        "independent": "records" if apart(units) else "groups",
        "accuracy": as_json(rate(predictions == labels, units)),
        "balanced_accuracy": as_json(balanced_accuracy(labels, predictions, units)),
        "auc": as_json(macro_auc(labels, probabilities, units)),
        "calibration_error": calibration_error(labels, probabilities),
        "by_class": by_class,
    }


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Return ranks from 1 [records]; ties share their mean."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _area(positive: np.ndarray, scores: np.ndarray) -> tuple[float, np.ndarray]:
    """Return an AUC and each record's influence on it [records]."""
    ranks = _ranks(scores)
    influence = np.empty(len(scores))
    for own in (positive, ~positive):
        others = len(scores) - own.sum()
        influence[own] = (ranks[own] - _ranks(scores[own])) / others  # share of the other records below
    value = influence[positive].mean()
    influence[~positive] = 1 - influence[~positive]
    influence -= value
    return float(value), influence / np.where(positive, positive.sum(), (~positive).sum())
