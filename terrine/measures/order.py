"""How far off a student is where its classes have an order: grades, or bins of a number.

A wrong class is not as wrong as any other: beside accuracy (`terrine.measures`) there are

- the mean absolute error, in the units of the number or in grades, with a normal interval of a mean over independent
  records, or over patients where several records show one (Obuchowski 1997), within what there can be;
- how often the class is right or next to the right one;
- the quadratic weighted kappa of classes (Cohen 1968): 1 where all agree, 0 where it is as good as chance;
- Spearman's rank correlation of the number, or mean grade, with the truth.

The last two have percentiles of `DRAWS` bootstrap samples, of records or of whole patients. As all of the evaluation
they are private figures. One that nothing can be said of, because all truths or all answers are the same, is None.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError
from terrine.measures.classes import rate
from terrine.measures.intervals import CONFIDENCE, DRAWS, Measured, as_json, owners, percentiles, quantile

_BLOCK = 1 << 21
"""Weights that are held at a time."""


def mean_error(errors: np.ndarray, largest: float, units: np.ndarray | None = None) -> Measured:
    """Return the mean of errors, float64 [records] from 0 to `largest`. units: int64 [records], or None: all apart."""
    value, own = float(errors.mean()), owners(units, len(errors))
    sums = np.bincount(own, weights=(errors - value) / len(errors))
    deviation = np.sqrt(np.square(sums).sum() * len(sums) / max(len(sums) - 1, 1))
    step = float(quantile() * deviation)
    method = "normal" if len(sums) == len(errors) else "normal, by groups"
    return Measured(value, max(value - step, 0.0), min(value + step, largest), method)


def quadratic_kappa(labels: np.ndarray, classes: np.ndarray, units: np.ndarray | None = None) -> Measured | None:
    """Return the quadratic weighted kappa of classes with labels, both int64 [records].

    1 − Σ n_ij (i − j)² / Σ e_ij (i − j)², with e_ij what agrees by chance: of weights that are squares, means do.
    """
    one, other = labels.astype(np.float64), classes.astype(np.float64)

    def kappa(weights: np.ndarray) -> np.ndarray:
        total = weights.sum(axis=1)
        first, second, apart = (weights @ values / total for values in (one, other, (one - other) ** 2))
        by_chance = weights @ (one**2 + other**2) / total - 2 * first * second
        return 1 - np.divide(apart, by_chance, out=np.full(len(weights), np.nan), where=by_chance > 1e-12)

    return _bootstrapped(kappa, units, len(labels))


def spearman(truth: np.ndarray, said: np.ndarray, units: np.ndarray | None = None) -> Measured | None:
    """Return the correlation of the ranks of two numbers, both float64 [records], equals sharing theirs."""
    ranks = [_ranks(values) for values in (truth, said)]

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
    said: np.ndarray,
    labels: np.ndarray,
    classes: np.ndarray,
    *,
    largest: float,
    numbers: bool,
    units: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return all figures of a student whose classes have an order, as JSON values, with their intervals.

    Args:
        truth: The numbers, or grades' places, float64 [records].
        said: What the student says: numbers, or mean grades.
        labels: The bins or grades, int64 [records].
        largest: The largest error that there can be.
        numbers: Whether the error is that of numbers, not of grades.
        units: int64 [records], which records belong together; None where all are independent.

    Raises:
        InputError: arrays that do not belong together, or no record.
    """
    if not len(truth) or not all(array.shape == truth.shape for array in (said, labels, classes)):
        raise InputError("Figures of an order take as many answers as truths [records], at least one of them.")
    errors = np.abs(truth - said) if numbers else np.abs(labels - classes).astype(np.float64)
    middle = np.median(truth if numbers else labels)
    return {
        "of": "numbers" if numbers else "grades",
        "confidence": CONFIDENCE,
        "mean_absolute_error": as_json(mean_error(errors, largest, units)),
        # What saying the same of all records comes to at best.
        "error_of_the_median": float(np.abs((truth if numbers else labels) - middle).mean()),
        "within_one": as_json(rate(np.abs(labels - classes) <= 1, units)),
        "quadratic_kappa": as_json(quadratic_kappa(labels, classes, units)),
        "spearman": as_json(spearman(truth, said, units)),
    }


def _ranks(values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return what gives mean ranks [draws, records] of records that occur so often, weights [draws, records]."""
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
    """Return a figure of weights of records, [draws, records] to [draws], with percentiles over drawn units."""
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
