"""Record vectors whose sums are exact, for the mechanisms `moments` and `gradients`.

**A record's vector** is a function of only its image. With features f of a backbone that normalises by stored
statistics, and the mean m and covariance C of the queries' features, all of which are public,

    x = [ (C + γI)^(-1/2) (f − m), c ] / its norm,    γ = tr(C)/D,  c² = tr((C + γI)^(-1) C)/4,

rounded towards zero to multiples of `GRID`. The norm ‖x‖ is therefore at most 1, exactly, for every image. Directions
in which queries vary more than average get equal variance. Directions in which they hardly vary stay small, since noise
on every coordinate costs more than they contribute. The constant c gives a linear function of x an intercept, and
dividing by a norm does not change which linear score is largest: a head on x is a linear head on f (`Whitening.head`).

**A unit** (a record, or all records of a group) contributes the mean over its records. For this, its records have
integer weights that sum to `WEIGHT` and differ by at most one; only the first `WEIGHT` records count. Sensitivities of
sums over records also hold for units: lengths and distances of means are at most those of the averaged values (Jensen).

**Labels** are vectors of length at most 1: for K classes, one coordinate is 1 and the others are 0; for K findings,
each coordinate is 1/√K or −1/√K, rounded towards zero.

**Sums are exact.** Factors are multiples of `GRID` and weights are integers. Sums of fewer than 2^53 steps are exact in
floating point in every order; they are then added up as 64-bit integers. So the sum over two parties' records equals
the sum of their sums exactly, in the fixed point that secret shares need.

**Products are exact.** BLAS adds the terms of a matrix product in an order that depends on a row's position and on the
number of rows, so the last bit of a record's vector would depend on other records. Factors are therefore rounded first,
so that no partial sum is rounded (`_columns`): a row of the result is a function of that row and of the other factor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.determinism.parallel import side_by_side
from terrine.errors import InputError

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Factors = Callable[[slice, Floats], NDArray[np.floating]]

GRID = 2.0**-14
"""Grid of the coordinates of vectors and of their factors."""
WEIGHT = 2**8
"""Sum of the weights of a unit's records."""
STEP = GRID**2 / WEIGHT
"""Step of all sums: the product of two coordinates on the grid with a weight of one."""
MOST_RECORDS = 2**26
"""Largest number of records; sums over them stay far within 64 bits."""

_ROWS = 4096  # of 2^(14 + 14 + 8) steps each: their sum is below 2^53
_SHORTER = 1 - 1e-9  # 1e-9 is above the rounding error of a norm and of a division by it
_HUGE = 1e100  # sums of MOST_RECORDS such numbers are finite, and so are their squares
_TINY = 1e-100  # squares of larger numbers are not zero
_CONSTANT = 0.5  # relative to the typical length of the other coordinates
_ROW_BITS, _COLUMN_BITS = 22, 30  # precision of a product's two factors: together 52 bits, since norms are rounded


def _rounded(vectors: Floats, axis: int, bits: int) -> Floats:
    """Round vectors along `axis` towards zero to multiples of a power of two, so that norms are below 2^bits steps."""
    vectors = np.where(np.abs(vectors) > _TINY, vectors, 0.0)
    step = np.ldexp(1.0, np.frexp(np.linalg.norm(vectors, axis=axis, keepdims=True))[1] - bits)
    return np.asarray(np.trunc(vectors / step) * step)


def _columns(matrix: ArrayLike) -> Floats:
    """Return a matrix with rounded columns, clipped to ±`_HUGE` and with NaN as 0.

    Its product with rows on the grid of norm ≤ 1, or `_rounded` to `_ROW_BITS`, is exact: by Cauchy-Schwarz every
    partial sum is an integer number of steps below 2^53, which floating point represents. Neither the order of the
    terms nor fused operations change a bit, on any machine.
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
        """Fit the map to features of public images [queries, features]; `regular` is γ relative to the mean variance.

        Raises:
            InputError: fewer than two queries.
        """
        features = np.asarray(queries, dtype=np.float64)
        if features.ndim != 2 or len(features) < 2:
            raise InputError(
                f"A whitening needs features [queries, features] of at least two queries, got {list(features.shape)}."
            )
        values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(features.T)))
        values = np.maximum(values, 0)
        larger = values + regular * max(float(values.mean()), 1e-12)
        # The symmetric root does not depend on signs or order of eigenvectors, so all libraries agree.
        root = (vectors / np.sqrt(larger)) @ vectors.T
        length = np.sqrt(max(float((values / larger).sum()), 1e-12))
        return cls(features.mean(axis=0), root, _CONSTANT * float(length))

    @property
    def arrays(self) -> dict[str, Floats]:
        """Arrays of the whitening by name, as stored with a release."""
        return {"mean": self.mean, "matrix": self.matrix, "constant": np.array([self.constant])}

    @property
    def length(self) -> int:
        """Number of coordinates of a vector: one for each feature, and the constant."""
        return len(self.mean) + 1

    def vectors(self, features: ArrayLike) -> NDArray[np.float32]:
        """Return the vectors [records, length] of features [records, features]: multiples of GRID, of norm ≤ 1.

        A record with a non-finite feature has the zero vector. Each row depends only on the same row of the input.
        """
        given = np.asarray(features, dtype=np.float64) - self.mean
        known = (np.abs(given) < _HUGE).all(axis=1, keepdims=True)
        white = _rounded(np.where(known, given, 0.0), 1, _ROW_BITS) @ _columns(self.matrix)
        return _of_length_one(np.concatenate([white, np.full((len(white), 1), self.constant)], axis=1) * known)

    def head(self, weights: ArrayLike) -> tuple[Floats, Floats]:
        """Return weight [classes, features] and bias [classes] of the head on features for `weights` on vectors.

        The two heads' scores agree up to a positive factor per record: its norm before division, relative to the
        typical norm.
        """
        on_vectors = np.asarray(weights, dtype=np.float64) / (self.constant * np.hypot(1, 1 / _CONSTANT))
        weight = on_vectors[:-1].T @ self.matrix
        return weight, self.constant * on_vectors[-1] - weight @ self.mean


def _of_length_one(rows: Floats) -> NDArray[np.float32]:
    """Return rows divided by their norms, on the grid.

    A row becomes zero if it is zero, contains NaN, or has a largest element whose square overflows or underflows.
    """
    largest = np.abs(rows).max(axis=1, keepdims=True)  # NaN if a row contains NaN
    known = (largest < _HUGE) & (largest > _TINY)
    rows = np.where(known, rows, 0.0)
    return on_grid(rows / np.where(known, np.linalg.norm(rows, axis=1, keepdims=True), 1.0) * _SHORTER)


def on_grid(values: Floats) -> NDArray[np.float32]:
    """Round |values| ≤ 1 towards zero to multiples of GRID, which float32 represents; norms do not grow."""
    return (np.trunc(values / GRID) * GRID).astype(np.float32)


def row_type(length: int) -> np.dtype:
    """Return the type of one record in a party's file: its vector, its label and its unit's number."""
    return np.dtype([("vector", "<f4", (length,)), ("label", "<i8"), ("unit", "<i8")])


@dataclass(frozen=True, eq=False)
class Records:
    """Vectors, labels and weights of all records. Private.

    Attributes:
        vectors: float32 [records, length], multiples of GRID, of norm ≤ 1.
        labels: int64 [records]; for several findings [records, classes], 0 or 1.
        weights: int64 [records]; the weights of each unit sum to WEIGHT.
    """

    vectors: NDArray[np.float32]
    labels: NDArray[np.int64]
    weights: Steps
    classes: int

    @classmethod
    def of(cls, vectors: NDArray[np.float32], labels: ArrayLike, units: ArrayLike, classes: int) -> Self:
        """Return records with the weights that follow from `units` [records], equal for records of one unit.

        Raises:
            InputError: Shapes do not match, there are no or too many records, or vectors are not from `Whitening`.
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
                raise InputError("A vector is longer than 1, or off the grid. Use Whitening.vectors.")
        _, unit, size = np.unique(owners, return_inverse=True, return_counts=True)
        order = np.argsort(unit, kind="stable")
        rank = np.empty(len(unit), dtype=np.int64)
        rank[order] = np.arange(len(unit)) - np.repeat(np.cumsum(size) - size, size)
        return cls(vectors, known, (WEIGHT + size[unit] - 1 - rank) // size[unit], classes)

    @property
    def length(self) -> int:
        """Number of coordinates of a vector."""
        return int(self.vectors.shape[1])

    def subset(self, chosen: NDArray[np.bool_]) -> "Records":
        """Return some records, which must be whole units; sums over them and over the rest add up to sums over all."""
        return Records(self.vectors[chosen], self.labels[chosen], self.weights[chosen], self.classes)

    def apply_lens(self, lens: Floats) -> "Records":
        """Return the records with vectors (A x) / ‖A x‖, of norm ≤ 1 for every matrix A [length, length]."""
        factor = _columns(lens.T)
        parts = side_by_side(lambda block: _of_length_one(self._block(block) @ factor), _blocks(len(self.vectors)))
        vectors = np.empty(self.vectors.shape, np.float32)
        for block, part in zip(_blocks(len(vectors)), parts, strict=True):
            vectors[block] = part
        return Records(vectors, self.labels, self.weights, self.classes)

    def second_moments(self) -> Steps:
        """Return Σ x xᵀ in whole steps, int64 [length, length]."""
        return self._sum(lambda _, vectors: vectors)

    def label_moments(self) -> Steps:
        """Return Σ x yᵀ for label vectors y, in whole steps, int64 [length, classes]."""
        return self._sum(lambda block, _: self._targets(block))

    def gradients(self, weights: Floats, clip: float) -> Steps:
        """Return the sum Σ x eᵀ of gradients of a softmax head's loss, in whole steps, int64 [length, classes].

        e = softmax(wᵀx) − y is scaled down to a norm of at most `clip`, which bounds the gradient's norm ‖x‖ ‖e‖. For K
        findings the loss is the sum of K logistic losses divided by √K, so e = (σ(wᵀx) − y) / √K, with y of zeros and
        ones, has norm at most 1 for every K.

        The head may come from another party. Its weights are clipped to ±`_HUGE`, and NaN becomes 0: otherwise an
        overflowing score would be NaN, and the records with such a score would determine the sum.
        """
        return self._sum(self._errors(weights, clip))

    def label_vectors(self) -> NDArray[np.float32]:
        """Return the vector y of each record's label [records, classes]."""
        return np.concatenate([self._targets(block) for block in _blocks(len(self.labels))])

    def errors(self, weights: Floats, clip: float) -> NDArray[np.float32]:
        """Return e of each record [records, classes]; see `gradients`."""
        errors = self._errors(weights, clip)
        return np.concatenate([errors(block, self._block(block)) for block in _blocks(len(self.labels))])

    def _targets(self, block: slice) -> NDArray[np.float32]:
        if self.labels.ndim == 1:
            return np.eye(self.classes, dtype=np.float32)[self.labels[block]]
        return on_grid((2.0 * self.labels[block] - 1) / np.sqrt(self.classes))

    def _errors(self, weights: Floats, clip: float) -> Factors:
        factor = _columns(weights)

        def errors(block: slice, vectors: Floats) -> NDArray[np.float32]:
            scores = _filled(vectors) @ factor
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
        def part(block: slice) -> Steps:
            vectors = self._block(block)
            weighted = factors(block, vectors) * (self.weights[block, None] / GRID**2)  # exact: GRID is a power of two
            return (vectors.T @ weighted).astype(np.int64)

        return reduce(np.add, side_by_side(part, _blocks(len(self.vectors))))

    def _block(self, block: slice) -> Floats:
        return self.vectors[block].astype(np.float64)


def _blocks(count: int) -> list[slice]:
    return [slice(first, min(first + _ROWS, count)) for first in range(0, max(count, 1), _ROWS)]


def _filled(rows: Floats) -> Floats:
    """Pad a block with zeros to full size, since vectorised exp and tanh may treat the end of an array differently."""
    if len(rows) == _ROWS:
        return rows
    block = np.zeros((_ROWS, rows.shape[1]))
    block[: len(rows)] = rows
    return block
