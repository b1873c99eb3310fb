"""Figures for rare classes: their values by scikit-learn, their intervals by plain loops and by simulation."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve

from terrine.errors import InputError
from terrine.measures import auc, balanced_accuracy, calibration_error, macro_auc, measures, odds, rate, sensitivity_at


def scored(generator, positives, others, apart=1.0, rounded=1):
    """Records of two kinds with normal scores, rounded so that some are equal."""
    positive = np.r_[np.ones(positives, bool), np.zeros(others, bool)]
    return positive, np.round(generator.normal(size=len(positive)) + apart * positive, rounded)


@pytest.mark.parametrize(("positives", "others"), [(5, 60), (40, 40), (200, 3)])
def test_figures_are_those_of_scikit_learn(positives, others):
    positive, scores = scored(np.random.default_rng(positives), positives, others)
    assert auc(positive, scores).value == pytest.approx(roc_auc_score(positive, scores))
    alarms, found, _ = roc_curve(positive, scores, drop_intermediate=False)
    for specificity in (0.5, 0.9, 0.97):
        expected = found[alarms <= 1 - specificity + 1e-12].max()
        assert sensitivity_at(positive, scores, specificity).value == pytest.approx(expected)
    labels = positive.astype(np.int64)
    predictions = (scores > 0.5).astype(np.int64)
    assert balanced_accuracy(labels, predictions).value == pytest.approx(balanced_accuracy_score(labels, predictions))


def test_several_classes_count_alike_in_the_macro_auc_and_one_without_records_not_at_all():
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1, 3], [100, 20, 7])
    probabilities = generator.dirichlet([1, 1, 1, 1], len(labels))
    areas = [roc_auc_score(labels == number, probabilities[:, number]) for number in (0, 1, 3)]
    assert macro_auc(labels, probabilities).value == pytest.approx(np.mean(areas))
    found = measures(labels, probabilities, ["a", "b", "c", "d"])
    assert found["by_class"][2] == {"class": "c", "sensitivity": None, "auc": None, "sensitivity_at_specificity": None}
    assert found["by_class"][3]["auc"]["value"] == pytest.approx(areas[2])


def test_the_interval_of_an_auc_is_delongs_as_plain_loops_find_it():
    positive, scores = scored(np.random.default_rng(3), 12, 30)
    own, others = scores[positive], scores[~positive]
    wins = [[(a > b) + (a == b) / 2 for b in others] for a in own]
    value, deviation = (
        np.mean(wins),
        np.sqrt(np.var(np.mean(wins, 1), ddof=1) / 12 + np.var(np.mean(wins, 0), ddof=1) / 30),
    )
    step = 1.959964 * deviation / (value * (1 - value))
    expected = [1 / (1 + np.exp(-(np.log(value / (1 - value)) + side))) for side in (-step, step)]
    found = auc(positive, scores)
    assert (found.method, found.low, found.high) == ("DeLong", *(pytest.approx(end, rel=1e-5) for end in expected))


@pytest.mark.parametrize("patients", [1, 4])
def test_intervals_hold_as_often_as_they_say_also_where_images_of_a_patient_are_alike(patients):
    """Each patient gives `patients` images with nearly one score: 25 of 120 patients are ill."""
    generator, held = np.random.default_rng(1), {"accuracy": [], "balanced": [], "auc": [], "sensitivity": []}
    truth, ill = {"accuracy": 0.5, "balanced": 0.5, "auc": 0.5, "sensitivity": 0.5}, np.arange(120) < 25
    from scipy.stats import norm

    truth["auc"] = norm.cdf(1.5 / np.sqrt(2))
    right_ill, right_well = norm.cdf(1.5 - 0.8), norm.cdf(0.8)
    truth["accuracy"] = (25 * right_ill + 95 * right_well) / 120
    truth["balanced"] = (right_ill + right_well) / 2
    truth["sensitivity"] = norm.cdf(1.5 - norm.ppf(0.9))
    units = None if patients == 1 else np.repeat(np.arange(120), patients)
    for _ in range(80):
        scores = np.repeat(generator.normal(size=120) + 1.5 * ill, patients)
        scores = scores + 1e-3 * generator.normal(size=len(scores))
        positive = np.repeat(ill, patients)
        labels, predictions = positive.astype(int), (scores > 0.8).astype(int)
        for name, found in (
            ("accuracy", rate(labels == predictions, units)),
            ("balanced", balanced_accuracy(labels, predictions, units)),
            ("auc", auc(positive, scores, units)),
            ("sensitivity", sensitivity_at(positive, scores, 0.9, units)),
        ):
            held[name].append(found.low <= truth[name] <= found.high)
    shares = {name: np.mean(each) for name, each in held.items()}
    assert all(share >= 0.88 for share in shares.values()), shares
    if patients > 1:  # as if they were 480 patients, the interval holds far less often
        narrow = auc(positive, scores)
        wide = auc(positive, scores, units)
        assert wide.high - wide.low > 1.7 * (narrow.high - narrow.low)


@pytest.mark.parametrize(("units", "ill", "all_in_all"), [(None, 0.610, 0.839), (np.arange(20) // 2, 0.438, 0.722)])
def test_what_every_classifier_would_like_to_show_has_an_interval_all_the_same(units, ill, all_in_all):
    """Without errors the interval is Wilson's, here for six of twenty records, or three of ten patients."""
    positive = np.arange(20) < 6
    for found, low in (
        (auc(positive, positive * 1.0, units), ill),
        (sensitivity_at(positive, positive * 1.0, 0.9, units), ill),
        (rate(np.ones(20, bool), units), all_in_all),
    ):
        assert found.value == pytest.approx(found.high) == 1.0
        assert found.low == pytest.approx(low, abs=0.001)


def test_units_of_one_record_each_change_nothing():
    positive, scores = scored(np.random.default_rng(5), 20, 50)
    apart = np.random.default_rng(0).permutation(70)
    assert auc(positive, scores, apart) == auc(positive, scores)
    assert rate(positive, apart) == rate(positive)
    assert sensitivity_at(positive, scores, 0.9, apart).method == "bootstrap of records"


def test_odds_tell_records_apart_whose_probabilities_are_rounded_to_one():
    probabilities = np.array([[1e-9, 1.0], [1e-12, 1.0], [0.5, 0.5]], np.float32)
    assert len(set(odds(probabilities, 1))) == 3


def test_the_calibration_error_is_that_of_a_plain_loop_over_bins():
    generator = np.random.default_rng(2)
    probabilities, labels = generator.dirichlet([0.5, 0.5, 0.5], 400), generator.integers(3, size=400)
    expected = 0.0
    for number in range(15):
        own = [n for n, row in enumerate(probabilities) if number / 15 <= row.max() < (number + 1) / 15]
        if own:
            right = np.mean([probabilities[n].argmax() == labels[n] for n in own])
            expected += len(own) / 400 * abs(right - np.mean([probabilities[n].max() for n in own]))
    assert calibration_error(labels, probabilities) == pytest.approx(expected)
    assert calibration_error(np.array([0, 1]), np.eye(2)) == 0.0


def test_arrays_that_do_not_belong_together_are_refused():
    with pytest.raises(InputError, match=r"got shapes \[3, 2\] and \[3\]"):
        measures(np.zeros(3, int), np.ones((3, 2)), ["a", "b", "c"])
    with pytest.raises(InputError, match="at least one"):
        measures(np.zeros(0, int), np.ones((0, 2)), ["a", "b"])
