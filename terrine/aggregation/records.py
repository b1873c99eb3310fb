"""Vectors of records whose sums are exact: what `moments` and `gradients` add up.

**A record's vector** is a function of its one image. With features f of a backbone that normalises by stored
statistics, and mean m and covariance C of the features of the queries, all of which are public,

    x = [ (C + γI)^(-1/2) (f − m), c ] / its norm,    γ = tr(C)/D,  c² = tr((C + γI)^(-1) C)/4,

rounded towards zero to whole multiples of `GRID`. So ‖x‖ ≤ 1 holds to the bit, whatever the image is. Axes along which
queries vary more than on average come to vary alike, and those along which they hardly vary stay small: what an image
has there is worth less than what noise on every coordinate costs. The constant c lets a linear function of x have an
intercept, and dividing by a norm changes the winner of no linear scores: a head on x is a linear head on f
(`Whitening.head`).

**A unit** (a record, or all records of a group) speaks with one voice: it adds the mean of what its records add. For
that its records have weights that sum to `WEIGHT`, equal ones up to one; of more than `WEIGHT` records the first count.
Sensitivities of sums over records hold for units unchanged: lengths and distances of means are at most those of what is
averaged (Jensen).

**Labels** are vectors of length 1 at most: of K classes one coordinate is 1 and the others are 0; of K findings, each
of which a record has or has not, every coordinate is 1/√K or −1/√K, rounded towards zero.

**Sums are exact.** Factors are whole multiples of `GRID`, weights are whole numbers, and as long as fewer than 2^53
steps are added up in floating point the order of the sum does not matter; such parts are added up as 64-bit integers.
So the sum over two parties' records is the sum of their sums, to the bit, and in fixed point as secret shares want it.

**Products are exact.** BLAS adds the terms of a matrix product in an order that depends on a row's position and on the
number of rows, so the last bit of a record's vector would depend on the other records. So factors are rounded first,
such that no partial sum is (`_columns`): a row of the result is a function of that row and of the other factor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.errors import InputError

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Factors = Callable[[slice], NDArray[np.float32]]

GRID = 2.0**-14
"""Coordinates of vectors, and of what they are multiplied by, are whole multiples of it."""
WEIGHT = 2**8
"""What the weights of a unit's records sum to."""
STEP = GRID**2 / WEIGHT
"""Sums are whole multiples of it: a product of coordinates with a weight of one."""
MOST_RECORDS = 2**26
"""Sums of so many stay far within 64 bits."""

_ROWS = 4096  # 2^(14 + 14 + 8) steps each: their sum is below 2^53
_SHORTER = 1 - 1e-9  # above the rounding of a norm and of a division by it
_HUGE = 1e100  # sums of so many times 1e100 are finite, and so are their squares
_TINY = 1e-100  # and squares of what is larger are no zeros
_CONSTANT = 0.5  # of the usual length of what stands before it
_ROW_BITS, _COLUMN_BITS = 22, 30  # of the factors of a product: 52 together, for norms are rounded


def _rounded(vectors: Floats, axis: int, bits: int) -> Floats:
    """Round vectors along `axis` towards zero, each to whole multiples of a power of two: fewer than 2^bits in norm."""
    vectors = np.where(np.abs(vectors) > _TINY, vectors, 0.0)
    step = np.ldexp(1.0, np.frexp(np.linalg.norm(vectors, axis=axis, keepdims=True))[1] - bits)
    return np.asarray(np.trunc(vectors / step) * step)


def _columns(matrix: ArrayLike) -> Floats:
    """Return a matrix with rounded columns, its numbers taken as ±`_HUGE` at most and NaN as 0.

    Its product with rows that are on the grid and of norm ≤ 1, or `_rounded` to `_ROW_BITS`, is exact: by
    Cauchy-Schwarz every partial sum is a whole number of steps below 2^53, which floating point holds. Neither the
    order of the terms nor fused operations change a bit, on any machine.
    """
    return _rounded(np.clip(np.nan_to_num(np.asarray(matrix, np.float64), nan=0.0), -_HUGE, _HUGE), 0, _COLUMN_BITS)


@dataclass(frozen=True, eq=False)
class Whitening:
    """The public map from features to vectors: x = [matrix (f − mean), constant] / norm."""

    mean: Floats
    matrix: Floats
    constant: float

    @classmethod
    def fit(cls, queries: ArrayLike, regular: float = 1.0) -> Self:
        """Learn it from the features of public images, [queries, features]. Raises InputError for fewer than two.

        regular: γ, in units of the mean variance.
        """
        features = np.asarray(queries, dtype=np.float64)
        if features.ndim != 2 or len(features) < 2:
            raise InputError(
                f"A whitening takes features [queries, features] of two queries or more, got an array of "
                f"shape {list(features.shape)}."
            )
        values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(features.T)))
        values = np.maximum(values, 0)
        larger = values + regular * max(float(values.mean()), 1e-12)
        # The symmetric root: no sign and no order of eigenvectors enters, so libraries agree about it.
        root = (vectors / np.sqrt(larger)) @ vectors.T
        length = np.sqrt(max(float((values / larger).sum()), 1e-12))
        return cls(features.mean(axis=0), root, _CONSTANT * float(length))

    @property
    def arrays(self) -> dict[str, Floats]:
        """Its parts by name, as they lie beside what was released."""
        return {"mean": self.mean, "matrix": self.matrix, "constant": np.array([self.constant])}

    @property
    def length(self) -> int:
        """Coordinates of a vector: one for each feature, and the constant."""
        return len(self.mean) + 1

    def vectors(self, features: ArrayLike) -> NDArray[np.float32]:
        """Return the vectors [records, length] of features [records, features]: multiples of GRID, of norm ≤ 1.

        A record with a feature that is no number has the vector zero. No row depends on another.
        """
        given = np.asarray(features, dtype=np.float64) - self.mean
        known = (np.abs(given) < _HUGE).all(axis=1, keepdims=True)
        white = _rounded(np.where(known, given, 0.0), 1, _ROW_BITS) @ _columns(self.matrix)
        return _of_length_one(np.concatenate([white, np.full((len(white), 1), self.constant)], axis=1) * known)

    def head(self, weights: ArrayLike) -> tuple[Floats, Floats]:
        """Return weight [classes, features] and bias [classes] of the linear head on features that is `weights`
        [length, classes] on vectors: its scores are those, times a norm before the division over a usual one."""
        on_vectors = np.asarray(weights, dtype=np.float64) / (self.constant * np.hypot(1, 1 / _CONSTANT))
        weight = on_vectors[:-1].T @ self.matrix
        return weight, self.constant * on_vectors[-1] - weight @ self.mean


def _of_length_one(rows: Floats) -> NDArray[np.float32]:
    """Return rows divided by their norms, on the grid; one of zeros, or with what is no number, is zero.

    So is one whose largest number has a square that is infinite or zero: its norm would be none.
    """
    largest = np.abs(rows).max(axis=1, keepdims=True)  # NaN where there is one
    known = (largest < _HUGE) & (largest > _TINY)
    rows = np.where(known, rows, 0.0)
    return on_grid(rows / np.where(known, np.linalg.norm(rows, axis=1, keepdims=True), 1.0) * _SHORTER)


def on_grid(values: Floats) -> NDArray[np.float32]:
    """Round towards zero to whole multiples of GRID: no norm grows. For |values| ≤ 1, which float32 then holds."""
    return (np.trunc(values / GRID) * GRID).astype(np.float32)


def row_type(length: int) -> np.dtype:
    """The type of one record in a party's file: its vector, its label and a number that its unit's records share."""
    return np.dtype([("vector", "<f4", (length,)), ("label", "<i8"), ("unit", "<i8")])


@dataclass(frozen=True, eq=False)
class Records:
    """Vectors and labels of all records, and how much of its unit's voice each has. Private.

    Attributes:
        vectors: float32 [records, length], multiples of GRID, of norm ≤ 1.
        labels: int64 [records]; of several findings [records, classes], 0 or 1.
        weights: int64 [records]; those of one unit sum to WEIGHT.
    """

    vectors: NDArray[np.float32]
    labels: NDArray[np.int64]
    weights: Steps
    classes: int

    @classmethod
    def of(cls, vectors: NDArray[np.float32], labels: ArrayLike, units: ArrayLike, classes: int) -> Self:
        """Gather records of units, which are equal for records of one unit.

        Raises:
            InputError: arrays that do not fit together, no record, too many, or vectors that are not `Whitening`'s.
        """
        known, owners = np.asarray(labels, dtype=np.int64), np.asarray(units)
        if not len(vectors) == len(known) == len(owners) or not 0 < len(vectors) <= MOST_RECORDS:
            raise InputError(
                f"{len(vectors)} vectors, {len(known)} labels and {len(owners)} units do not fit together."
            )
        several = known.shape[1:] == (classes,)
        if not (several or known.ndim == 1) or known.min() < 0 or known.max() >= (2 if several else classes):
            raise InputError(f"Labels run from {known.min()} to {known.max()}, and there are {classes} classes.")
        for block in _blocks(len(vectors)):
            steps = vectors[block].astype(np.float64) / GRID
            if (steps != np.trunc(steps)).any() or (np.square(steps).sum(axis=1) > GRID**-2).any():
                raise InputError("A vector is longer than 1, or off the grid: take those of Whitening.vectors.")
        _, unit, size = np.unique(owners, return_inverse=True, return_counts=True)
        order = np.argsort(unit, kind="stable")
        rank = np.empty(len(unit), dtype=np.int64)
        rank[order] = np.arange(len(unit)) - np.repeat(np.cumsum(size) - size, size)
        return cls(vectors, known, (WEIGHT + size[unit] - 1 - rank) // size[unit], classes)

    @property
    def length(self) -> int:
        """Coordinates of a vector."""
        return int(self.vectors.shape[1])

    def some(self, chosen: NDArray[np.bool_]) -> "Records":
        """Those of whole units: sums over them, and over the others, add up to sums over all."""
        return Records(self.vectors[chosen], self.labels[chosen], self.weights[chosen], self.classes)

    def through(self, lens: Floats) -> "Records":
        """The same records with vectors (A x) / ‖A x‖ for a matrix A [length, length]: of norm ≤ 1, whatever it is."""
        vectors, factor = np.empty(self.vectors.shape, np.float32), _columns(lens.T)
        for block in _blocks(len(vectors)):
            vectors[block] = _of_length_one(self.vectors[block].astype(np.float64) @ factor)
        return Records(vectors, self.labels, self.weights, self.classes)

    def second_moments(self) -> Steps:
        """Σ x xᵀ in whole steps, int64 [length, length]."""
        return self._sum(lambda block: self.vectors[block])

    def label_moments(self) -> Steps:
        """Σ x yᵀ with a record's label y as a vector of length 1, in whole steps, int64 [length, classes]."""
        return self._sum(self._targets)

    def gradients(self, weights: Floats, clip: float) -> Steps:
        """Σ x eᵀ in whole steps, int64 [length, classes], where x eᵀ is the gradient of the loss of a softmax head.

        e = softmax(wᵀx) − y, scaled down to norm `clip` at most: the gradient's norm is ‖x‖ ‖e‖, so no larger. Of K
        findings the loss is the sum of K logistic ones over √K, so that e = (σ(wᵀx) − y) / √K with y of 0 and 1 has a
        norm of 1 at most, however many there are.

        A head is what somebody else asks at. Its weights are taken as ±`_HUGE` at most, and as 0 where they are none:
        a score that overflowed would be no number, and which records have one would decide what becomes of the sum.
        """
        return self._sum(self._errors(weights, clip))

    def labels_as_vectors(self) -> NDArray[np.float32]:
        """Return the vector y of each record's label [records, classes]."""
        return np.concatenate([self._targets(block) for block in _blocks(len(self.labels))])

    def errors(self, weights: Floats, clip: float) -> NDArray[np.float32]:
        """Return e of each record [records, classes]; see `gradients`."""
        return np.concatenate([self._errors(weights, clip)(block) for block in _blocks(len(self.labels))])

    def _targets(self, block: slice) -> NDArray[np.float32]:
        if self.labels.ndim == 1:
            return np.eye(self.classes, dtype=np.float32)[self.labels[block]]
        return on_grid((2.0 * self.labels[block] - 1) / np.sqrt(self.classes))

    def _errors(self, weights: Floats, clip: float) -> Factors:
        factor = _columns(weights)

        def errors(block: slice) -> NDArray[np.float32]:
            scores = _filled(self.vectors[block]) @ factor
            labels = self.labels[block]
            if labels.ndim == 1:
                scores = np.exp(scores - scores.max(axis=1, keepdims=True))
                errors = (scores / scores.sum(axis=1, keepdims=True))[: len(labels)]
                errors[np.arange(len(errors)), labels] -= 1
            else:
                errors = ((0.5 + 0.5 * np.tanh(scores / 2))[: len(labels)] - labels) / np.sqrt(self.classes)
            norms = np.linalg.norm(errors, axis=1, keepdims=True)
            return on_grid(errors * np.minimum(1.0, clip * _SHORTER / np.maximum(norms, 1e-300)))

        return errors

    def _sum(self, factors: Factors) -> Steps:
        total: Steps | None = None
        for block in _blocks(len(self.vectors)):
            left = self.vectors[block].astype(np.float64) / GRID * self.weights[block, None]
            part = (left.T @ (factors(block).astype(np.float64) / GRID)).astype(np.int64)
            total = part if total is None else total + part
        assert total is not None
        return total


def _blocks(count: int) -> list[slice]:
    return [slice(first, min(first + _ROWS, count)) for first in range(0, max(count, 1), _ROWS)]


def _filled(rows: NDArray[np.float32]) -> Floats:
    """Fill a block up with zeros to its full size, for vectorised exp and tanh may treat an array's end differently."""
    block = np.zeros((_ROWS, rows.shape[1]))
    block[: len(rows)] = rows
    return block
