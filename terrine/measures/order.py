"""Metrics for ordered classes: grades, or bins of a number.

- The mean absolute error, in units of the number or in grades, with a normal interval over independent records or
  patients (Obuchowski 1997), limited to possible values.
- The share of records whose predicted class is correct or adjacent.
- The quadratic weighted kappa (Cohen 1968): 1 for perfect agreement, 0 for chance.
- Spearman's rank correlation of the number, or mean grade, with the truth.

The last two have percentile intervals over `DRAWS` bootstrap samples of records or patients. All these metrics are
private. A metric is None when it is undefined, i.e. when all labels or all predictions are equal.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError
from terrine.measures.classes import rate
from terrine.measures.intervals import CONFIDENCE, DRAWS, Measured, as_json, owners, percentiles, quantile

_BLOCK = 1 << 21
"""Number of bootstrap weights in memory."""


def mean_error(errors: np.ndarray, largest: float, units: np.ndarray | None = None) -> Measured:
    """Return the mean of errors with its interval.

    Args:
        errors: float64 [records], from 0 to `largest`.
        largest: Largest possible error.
        units: Unit of each record, int64 [records], or None if all are independent.
    """
    value, own = float(errors.mean()), owners(units, len(errors))
    sums = np.bincount(own, weights=(errors - value) / len(errors))
    deviation = np.sqrt(np.square(sums).sum() * len(sums) / max(len(sums) - 1, 1))
    step = float(quantile() * deviation)
    method = "normal" if len(sums) == len(errors) else "normal, by groups"
    return Measured(value, max(value - step, 0.0), min(value + step, largest), method)


def quadratic_kappa(labels: np.ndarray, classes: np.ndarray, units: np.ndarray | None = None) -> Measured | None:
    """Return the quadratic weighted kappa between predicted classes and labels, both int64 [records].

    Kappa is 1 − Σ n_ij (i − j)² / Σ e_ij (i − j)² with e_ij, the counts expected by chance; computed from mean squares.
    """
    one, other = labels.astype(np.float64), classes.astype(np.float64)

    def kappa(weights: np.ndarray) -> np.ndarray:
        total = weights.sum(axis=1)
        first, second, apart = (weights @ values / total for values in (one, other, (one - other) ** 2))
        by_chance = weights @ (one**2 + other**2) / total - 2 * first * second
        return 1 - np.divide(apart, by_chance, out=np.full(len(weights), np.nan), where=by_chance > 1e-12)

    return _bootstrapped(kappa, units, len(labels))


def spearman(truth: np.ndarray, predicted: np.ndarray, units: np.ndarray | None = None) -> Measured | None:
    """Return Spearman's rank correlation of two numbers, both float64 [records]; ties share their mean rank."""
    ranks = [_ranks(values) for values in (truth, predicted)]

    def correlation(weights: np.ndarray) -> np.ndarray:
        total = weights.sum(axis=1, keepdims=True)
        one, other = (rank(weights) for rank in ranks)
        one -= (weights * one).sum(axis=1, keepdims=True) / total
        other -= (weights * other).sum(axis=1, keepdims=True) / total
        product, *squares = ((weights * part).sum(axis=1) for part in (one * other, one**2, other**2))
        size = np.sqrt(squares[0] * squares[1])
        return np.divide(product, size, out=np.full(len(weights), np.nan), where=size > 1e-9)

    return _bootstrapped(correlation, units, len(truth))


def measures_of_order(
    truth: np.ndarray,
    predicted: np.ndarray,
    labels: np.ndarray,
    classes: np.ndarray,
    *,
    largest: float,
    numbers: bool,
    units: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return all metrics of ordered classes with their intervals, as JSON values.

    Args:
        truth: Numbers, or ranks of grades, float64 [records].
        predicted: Predicted numbers, or mean grades, float64 [records].
        labels: Bins or grades, int64 [records].
        classes: Predicted bins or grades, int64 [records].
        largest: Largest possible error.
        numbers: Whether the classes are bins of numbers instead of grades.
        units: Unit of each record, int64 [records], or None if all are independent.

    Raises:
        InputError: the shapes differ, or there is no record.
    """
    if not len(truth) or not all(array.shape == truth.shape for array in (predicted, labels, classes)):
        raise InputError("Metrics of ordered classes need arrays of one shape [records] with at least one record.")
    errors = np.abs(truth - predicted) if numbers else np.abs(labels - classes).astype(np.float64)
    middle = np.median(truth if numbers else labels)
    return {
        "of": "numbers" if numbers else "grades",
        "confidence": CONFIDENCE,
        "mean_absolute_error": as_json(mean_error(errors, largest, units)),
        # Error of the best constant prediction.
        "error_of_the_median": float(np.abs((truth if numbers else labels) - middle).mean()),
        "within_one": as_json(rate(np.abs(labels - classes) <= 1, units)),
        "quadratic_kappa": as_json(quadratic_kappa(labels, classes, units)),
        "spearman": as_json(spearman(truth, predicted, units)),
    }


def _ranks(values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that maps weights [draws, records] to the mean ranks of the weighted records."""
    _, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(place.max() + 1))

    def ranks(weights: np.ndarray) -> np.ndarray:
        counts = np.add.reduceat(weights[:, order], starts, axis=1)
        return np.asarray((np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, place])

    return ranks


def _bootstrapped(
    figure: Callable[[np.ndarray], np.ndarray], units: np.ndarray | None, records: int
) -> Measured | None:
    """Return a metric, a function of weights [draws, records], with a percentile interval over bootstrapped units."""
    value = float(figure(np.ones((1, records)))[0])
    if np.isnan(value):
        return None
    own = owners(units, records)
    count, generator, found = int(own.max()) + 1, numpy_generator(0, "bootstrap of order"), []
    size = max(1, _BLOCK // records)
    for first in range(0, DRAWS, size):
        drawn = np.stack(
            [
                np.bincount(generator.integers(count, size=count), minlength=count)
                for _ in range(min(size, DRAWS - first))
            ]
        )
        found.append(figure(drawn[:, own].astype(np.float64)))
    return Measured(value, *percentiles(found), f"bootstrap of {'records' if count == records else 'groups'}")
