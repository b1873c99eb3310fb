"""Vectors of records and their sums: bounded to the bit, exact, and a linear head in the end."""

from fractions import Fraction

import numpy as np
import pytest

from terrine.aggregation.records import (
    GRID,
    STEP,
    WEIGHT,
    Records,
    Whitening,
    _columns,
    _of_length_one,
    on_grid,
)
from terrine.errors import InputError

GENERATOR = np.random.default_rng(0)
QUERIES = GENERATOR.normal(size=(300, 6)) * [1, 1, 2, 2, 3, 3] + 3
WHITENING = Whitening.fit(QUERIES)
FEATURES = GENERATOR.normal(size=(500, 6)) * 4
CLASSES = 3
LABELS = GENERATOR.integers(0, CLASSES, 500)


def records(units: object = None, keep: slice = slice(None)) -> Records:
    owners = np.arange(500) if units is None else np.asarray(units)
    return Records.of(WHITENING.vectors(FEATURES)[keep], LABELS[keep], owners[keep], CLASSES)


def test_a_vector_is_on_the_grid_and_no_longer_than_one_whatever_the_features_are() -> None:
    strange = np.concatenate([FEATURES, FEATURES[:4] * 1e30, np.full((1, 6), np.nan), np.full((1, 6), np.inf)])
    vectors = WHITENING.vectors(np.concatenate([strange, [[0, 0, 0, 1e308, 0, 0]]]))
    steps = (vectors.astype(np.float64) / GRID).astype(np.int64)
    assert (steps * GRID == vectors).all()
    assert (np.square(steps).sum(axis=1) <= GRID**-2).all()
    assert (np.linalg.norm(vectors[: len(FEATURES)], axis=1) > 0.99).all()
    assert (vectors[-3:] == 0).all()


def test_axes_that_queries_vary_along_come_to_vary_alike_and_others_stay_small() -> None:
    covariance = np.cov(QUERIES.T)
    shares = np.linalg.eigvalsh(covariance) / np.trace(covariance) * 6
    white = np.cov(((QUERIES - WHITENING.mean) @ WHITENING.matrix).T)
    assert np.allclose(np.linalg.eigvalsh(white), shares / (1 + shares))
    assert np.isclose(WHITENING.constant, np.sqrt(np.trace(white)) / 2)
    flat = Whitening.fit(np.ones((5, 3)))
    assert flat.vectors(np.ones((1, 3))).tolist() == [[0, 0, 0, 1 - GRID]]


def test_a_head_on_vectors_is_a_linear_head_on_features() -> None:
    on_vectors = GENERATOR.normal(size=(WHITENING.length, CLASSES))
    weight, bias = WHITENING.head(on_vectors)
    white = np.column_stack([(FEATURES - WHITENING.mean) @ WHITENING.matrix, np.full(500, WHITENING.constant)])
    norms = np.linalg.norm(white, axis=1, keepdims=True)
    expected = (white / norms) @ on_vectors * norms / (np.sqrt(5) * WHITENING.constant)
    assert np.allclose(FEATURES @ weight.T + bias, expected)


def test_the_weights_of_a_unit_sum_to_one_voice_and_are_as_equal_as_can_be() -> None:
    units = np.concatenate([np.zeros(1), np.ones(100), np.full(300, 2), np.full(99, 3)])
    weights = records(units).weights
    for unit in range(4):
        own = weights[units == unit]
        assert own.sum() == WEIGHT
        assert own.max() - own.min() <= 1


@pytest.mark.parametrize("units", [None, np.arange(500) // 7])
def test_sums_are_those_of_a_plain_loop_in_whole_numbers(units: object) -> None:
    given = records(units)
    steps = [[int(value / GRID) for value in row] for row in given.vectors.tolist()]
    second = np.zeros((7, 7), object)
    labels = np.zeros((7, CLASSES), object)
    for row, label, weight in zip(steps, given.labels, given.weights, strict=True):
        for i, one in enumerate(row):
            labels[i, label] += int(weight) * one * round(1 / GRID)
            for j, other in enumerate(row):
                second[i, j] += int(weight) * one * other
    assert (given.second_moments() == second).all()
    assert (given.label_moments() == labels).all()


def test_the_sum_over_two_parties_is_the_sum_of_theirs_to_the_bit() -> None:
    weights = GENERATOR.normal(size=(7, CLASSES))
    both = [records(), records(keep=slice(0, 123)), records(keep=slice(123, None))]
    for sums in ([r.second_moments() for r in both], [r.gradients(weights, 0.4) for r in both]):
        assert (sums[0] == sums[1] + sums[2]).all()


def test_a_gradient_is_that_of_the_softmax_loss_limited_in_length() -> None:
    weights = GENERATOR.normal(size=(7, CLASSES))
    for clip in (1.0, 0.3):
        expected = np.zeros((7, CLASSES))
        for vector, label in zip(records().vectors.astype(float), LABELS, strict=True):
            scores = np.exp(vector @ weights)
            error = scores / scores.sum() - np.eye(CLASSES)[label]
            expected += np.outer(vector, error * min(1.0, clip / np.linalg.norm(error)))
        assert np.allclose(records().gradients(weights, clip) * STEP, expected, atol=500 * GRID)


@pytest.mark.parametrize("findings", [False, True])
@pytest.mark.parametrize("size", [np.finfo(float).max, np.inf, np.nan])
def test_a_head_at_which_scores_overflow_gives_every_record_a_gradient_of_the_usual_length(
    size: float, findings: bool
) -> None:
    """Scores that are no number would make of the sum one that a party refuses, or that lacks thousands of records."""
    labels = np.random.default_rng(2).integers(0, 2, (len(LABELS), CLASSES)) if findings else LABELS
    vectors = records().vectors
    target = vectors[3].astype(float) / np.linalg.norm(vectors[3])
    others = np.delete(vectors.astype(float), 3, axis=0) @ target
    between = (others.max() + np.linalg.norm(vectors[3])) / 2
    weights = np.repeat((target / between * size)[:, None], CLASSES, axis=1)  # overflows only at record 3
    each = [
        Records.of(vectors[[n]], labels[[n]], np.zeros(1), CLASSES).gradients(weights, 0.4) for n in range(len(labels))
    ]
    assert max(np.linalg.norm(one * STEP) for one in each) <= 0.4
    together = Records.of(vectors, labels, np.arange(len(labels)), CLASSES).gradients(weights, 0.4)
    assert np.array_equal(together, np.sum(each, axis=0))


@pytest.mark.parametrize("width", [6, 200, 201, 301])
def test_no_record_is_moved_by_another_or_by_its_position(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenBLAS rounds some rows of a product differently if it has more than 192 terms, not a multiple of 8.

    The rounding grid hides nearly all of it, so the products themselves are compared.
    """
    products: list[np.ndarray] = []

    def noted(rows: np.ndarray) -> np.ndarray:
        products.append(rows)
        return _of_length_one(rows)

    monkeypatch.setattr("terrine.aggregation.records._of_length_one", noted)
    generator = np.random.default_rng(width)
    features = generator.normal(size=(5000, width)) * generator.uniform(0.1, 10, width)
    whitening, lens = Whitening.fit(features[:800]), generator.normal(size=(width + 1, width + 1))
    weights = generator.normal(size=(width + 1, CLASSES)) * 30

    def found(chosen: np.ndarray) -> list[np.ndarray]:
        products.clear()
        vectors = whitening.vectors(features[chosen])
        white = products.pop()
        there = Records.of(vectors, chosen % CLASSES, np.arange(len(chosen)), CLASSES).apply_lens(lens)
        seen = np.concatenate(products)[: len(chosen)]
        return [white, seen, vectors, there.vectors, there.gradients(weights, 0.4)]

    everyone = np.arange(5000)
    *of_all, total = found(everyone)
    one_by_one = np.zeros_like(total)
    for count in (1, 199, 200, 201, 202, 255, 256, 257, 1000, 4097):
        chosen = generator.permutation(5000)[:count]
        *vectors, _ = found(chosen)
        for alone, beside in zip(vectors, of_all, strict=True):
            assert np.array_equal(alone, beside[chosen])
    for part in np.array_split(generator.permutation(5000), 37):
        one_by_one += found(part)[-1]
    assert np.array_equal(one_by_one, total)


def test_a_product_with_a_rounded_matrix_is_exact() -> None:
    """Compare it with rational arithmetic, for columns of any scale."""
    vectors = WHITENING.vectors(FEATURES[:20])
    for matrix in (GENERATOR.normal(size=(7, 4)) * 10.0 ** np.array([-90, -5, 0, 90]), np.full((7, 2), 1 - 2**-30)):
        rounded = _columns(matrix)
        assert np.abs(rounded - matrix).max(axis=0).tolist() <= (np.linalg.norm(matrix, axis=0) * 2**-29).tolist()
        exact = [
            [sum(Fraction(float(x)) * Fraction(a) for x, a in zip(row, column, strict=True)) for column in rounded.T]
            for row in vectors
        ]
        assert (vectors.astype(float) @ rounded).tolist() == [[float(value) for value in row] for row in exact]
        assert all(Fraction(float(value)) == value for row in exact for value in row)


def test_rounding_is_towards_zero() -> None:
    values = GENERATOR.uniform(-1, 1, 1000)
    assert (np.abs(on_grid(values)) <= np.abs(values)).all()
    assert np.abs(on_grid(values) - values).max() <= GRID


def test_what_does_not_fit_is_refused() -> None:
    vectors = WHITENING.vectors(FEATURES)
    for given, labels in (
        (vectors * 1.5, LABELS),
        (vectors + 1e-6, LABELS),
        (vectors, LABELS[:-1]),
        (vectors, LABELS + 1),
    ):
        with pytest.raises(InputError):
            Records.of(given.astype(np.float32), labels, np.arange(500), CLASSES)
    with pytest.raises(InputError, match="two queries"):
        Whitening.fit(QUERIES[:1])
