"""Figures of classes that have an order, against scikit-learn's and SciPy's, and their intervals."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import cohen_kappa_score

from terrine.errors import InputError
from terrine.measures.order import mean_error, measures_of_order, quadratic_kappa, spearman


def drawn(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 5, count)
    return labels, np.clip(labels + generator.integers(-1, 3, count), 0, 4)


def test_kappa_and_rank_correlation_are_those_of_others() -> None:
    for seed in range(5):
        labels, classes = drawn(200, seed)
        assert quadratic_kappa(labels, classes).value == pytest.approx(
            cohen_kappa_score(labels, classes, weights="quadratic")
        )
        assert spearman(labels.astype(float), classes + 0.5).value == pytest.approx(spearmanr(labels, classes)[0])
    assert quadratic_kappa(np.ones(9, int), np.ones(9, int)) is None
    assert spearman(np.arange(9.0), np.ones(9)) is None


def test_intervals_hold_what_another_sample_shows_and_know_whose_records_they_are() -> None:
    labels, classes = drawn(200_000, 9)
    truth = cohen_kappa_score(labels, classes, weights="quadratic")
    error = np.abs(labels - classes).mean()
    inside = {"kappa": 0, "error": 0}
    for seed in range(60):
        one, other = drawn(150, seed)
        kappa, mean = quadratic_kappa(one, other), mean_error(np.abs(one - other).astype(float), 4)
        inside["kappa"] += kappa.low <= truth <= kappa.high
        inside["error"] += mean.low <= error <= mean.high
    assert all(count >= 50 for count in inside.values()), inside
    # Duplicated records of one unit count once.
    one, other = drawn(150)
    twice, units = np.concatenate([one, one]), np.tile(np.arange(150), 2)
    again = np.concatenate([other, other])
    alone = mean_error(np.abs(one - other).astype(float), 4)
    grouped = mean_error(np.abs(twice - again).astype(float), 4, units)
    assert grouped[:3] == pytest.approx(alone[:3])
    assert grouped.method == "normal, by groups"
    assert quadratic_kappa(twice, again, units)[:3] == pytest.approx(quadratic_kappa(one, other)[:3])
    assert quadratic_kappa(twice, again, units).method == "bootstrap of groups"


def test_all_figures_of_numbers_and_of_grades_are_there() -> None:
    labels, classes = drawn(80)
    truth, said = labels * 20 + 5.0, classes * 20 + 10.0
    found = measures_of_order(truth, said, labels, classes, largest=100, numbers=True)
    assert found["mean_absolute_error"]["value"] == pytest.approx(np.abs(truth - said).mean())
    assert found["error_of_the_median"] == pytest.approx(np.abs(truth - np.median(truth)).mean())
    assert found["within_one"]["value"] == pytest.approx((np.abs(labels - classes) <= 1).mean())
    graded = measures_of_order(labels.astype(float), said, labels, classes, largest=4, numbers=False)
    assert graded["mean_absolute_error"]["value"] == pytest.approx(np.abs(labels - classes).mean())
    assert graded["of"] == "grades"
    with pytest.raises(InputError, match="arrays of one shape"):
        measures_of_order(truth, said[1:], labels, classes, largest=100, numbers=True)
