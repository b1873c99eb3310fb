import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.data_dependent import (
    check_histograms,
    gnmax_rdp,
    lnmax_rdp,
    log1mexp,
    log_p_answered,
    log_q_gnmax,
    log_q_lnmax,
    summed,
    threshold_rdp,
)
from terrine.privacy.accounting.renyi import convert, gaussian_rdp, pure_rdp, reference_orders
from tests.terrine.privacy.accounting.helpers import SIXTEEN_ORDERS, random_histograms

REL = 1e-10


def plain_gnmax_rdp(log_q, sigma, order):
    """Theorem 3 word by word, in ordinary numbers."""
    ceiling = order / sigma**2
    if log_q == 0:
        return ceiling
    q = math.exp(log_q)
    mu2 = sigma * math.sqrt(-log_q)
    mu1 = mu2 + 1
    e1, e2 = mu1 / sigma**2, mu2 / sigma**2
    if not (mu2 > 1 and mu1 > order and -log_q > e2):
        return ceiling
    if log_q > (mu2 - 1) * e2 - mu2 * (math.log(1 + 1 / (mu1 - 1)) + math.log(1 + 1 / (mu2 - 1))):
        return ceiling
    a = (1 - q) / (1 - (q * math.exp(e2)) ** ((mu2 - 1) / mu2))
    b = math.exp(e1) / q ** (1 / (mu1 - 1))
    return min(ceiling, math.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1))


def plain_lnmax_rdp(log_q, scale, order):
    q, epsilon = math.exp(log_q), 2 / scale
    bounds = [epsilon, epsilon**2 * order / 2]
    if q < (math.exp(epsilon) - 1) / (math.exp(2 * epsilon) - 1):
        ratio = (1 - q) / (1 - math.exp(epsilon) * q)
        bounds.append(math.log((1 - q) * ratio ** (order - 1) + q * math.exp(epsilon * (order - 1))) / (order - 1))
    return min(bounds)


def test_per_query_curves_of_gnmax_equal_the_reference(golden):
    for row in golden["gnmax_per_query"]:
        log_q = log_q_gnmax(golden.votes(row["votes"])[[row["row"]]], row["sigma"])
        assert log_q[0] == pytest.approx(float(row["logq"]), rel=REL)
        curve = gnmax_rdp(log_q, row["sigma"], SIXTEEN_ORDERS)[0]
        assert curve == pytest.approx([float(value) for value in row["rdp"]], rel=REL, abs=1e-300)


def test_the_bound_as_a_function_of_q_equals_the_reference(golden):
    for row in golden["rdp_gaussian"]:
        curve = gnmax_rdp([float(row["logq"])], row["sigma"], SIXTEEN_ORDERS)[0]
        assert curve == pytest.approx([float(value) for value in row["rdp"]], rel=REL, abs=1e-300)


def test_per_query_curves_of_lnmax_equal_the_reference(golden):
    for row in golden["lnmax_per_query"]:
        log_q = log_q_lnmax(golden.votes(row["votes"])[[row["row"]]], row["lmbd"])
        assert log_q[0] == pytest.approx(float(row["logq"]), rel=REL)
        curve = lnmax_rdp(log_q, row["lmbd"], SIXTEEN_ORDERS)[0]
        assert curve == pytest.approx([float(value) for value in row["rdp"]], rel=REL, abs=1e-300)


def test_threshold_tests_equal_the_reference(golden):
    for row in golden["threshold"]:
        log_p = log_p_answered([row["max_count"]], row["T"], row["sigma1"])
        assert log_p[0] == pytest.approx(float(row["logpr_answered"]), rel=REL)
        curve = threshold_rdp(log_p, row["sigma1"], SIXTEEN_ORDERS)[0]
        assert curve == pytest.approx([float(value) for value in row["rdp"]], rel=REL, abs=1e-300)
        if "rdp_data_ind" in row:
            assert gaussian_rdp(1, row["sigma1"], SIXTEEN_ORDERS) == pytest.approx(row["rdp_data_ind"], rel=REL)


def test_whole_runs_equal_the_reference_expected_and_realised(golden):
    orders = reference_orders()
    for row in golden["runs"]:
        votes = golden.votes(row["dataset"])[: row["queries"]]
        if row["mech"] == "lnmax":
            curves = {"expected": summed(lnmax_rdp, log_q_lnmax(votes, row["lmbd"]), row["lmbd"], orders)}
        else:
            sigma2, weights, tests = row["sigma2"], {"expected": np.ones(len(votes))}, 0.0
            if row["T"] is not None:
                log_p = log_p_answered(votes.max(axis=1), row["T"], row["sigma1"])
                weights = {"expected": np.exp(log_p), "realised": golden.array(row["mask_file"])}
                assert weights["expected"].sum() == pytest.approx(row["expected_answered"], rel=REL)
                assert weights["realised"].sum() == row["realised_answered"]
                if row["data_independent"]:
                    tests = len(votes) * gaussian_rdp(1, row["sigma1"], orders)
                else:
                    tests = summed(threshold_rdp, log_p, row["sigma1"], orders)
            if row["data_independent"]:
                answer = gaussian_rdp(math.sqrt(2), sigma2, orders)
                curves = {name: tests + weight.sum() * answer for name, weight in weights.items()}
            else:
                log_q = log_q_gnmax(votes, sigma2)
                curves = {
                    name: tests + summed(gnmax_rdp, log_q, sigma2, orders, weight) for name, weight in weights.items()
                }
        for order, value in row["rdp_at"].items():
            at = int(np.argmin(np.abs(orders - float(order))))
            assert curves["expected"][at] == pytest.approx(value, rel=REL)
        for name, curve in curves.items():
            epsilon, order = convert(orders, curve, row["delta"], "classical")
            assert epsilon == pytest.approx(row[f"{name}_eps"], rel=REL)
            assert order == row["order" if name == "expected" else "realised_order"]


@pytest.mark.parametrize(("teachers", "classes"), [(2, 2), (12, 3), (250, 10), (60, 100)])
@pytest.mark.parametrize("noise", [0.5, 4.0, 40.0])
def test_log_q_is_the_union_bound_summed_class_by_class(teachers, classes, noise):
    votes = random_histograms(10, teachers, classes, seed=1)
    gaussian, laplace = log_q_gnmax(votes, noise), log_q_lnmax(votes, noise)
    for i, counts in enumerate(votes):
        winner = int(np.argmax(counts))
        gaps = [counts[winner] - counts[j] for j in range(classes) if j != winner]
        expected = np.logaddexp.reduce([norm.logsf(gap, scale=math.sqrt(2) * noise) for gap in gaps])
        assert gaussian[i] == pytest.approx(min(expected, math.log(1 - 1 / classes)), rel=1e-12)
        expected = np.logaddexp.reduce([math.log((2 + gap / noise) / 4) - gap / noise for gap in gaps])
        assert laplace[i] == pytest.approx(min(expected, math.log(1 - 1 / classes)), rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.floats(-30, 0), st.floats(0.3, 200), st.floats(1.01, 300))
def test_the_bounds_equal_their_formulas_in_ordinary_numbers(log_q, noise, order):
    assert gnmax_rdp([log_q], noise, [order])[0, 0] == pytest.approx(
        plain_gnmax_rdp(log_q, noise, order), rel=1e-5, abs=1e-9
    )
    if order * 2 / noise < 500:
        assert lnmax_rdp([log_q], noise, [order])[0, 0] == pytest.approx(
            plain_lnmax_rdp(log_q, noise, order), rel=1e-5, abs=1e-9
        )


@pytest.mark.parametrize(("curve", "noise"), [(gnmax_rdp, 30.0), (threshold_rdp, 12.0), (lnmax_rdp, 15.0)])
def test_the_sum_equals_query_after_query(curve, noise):
    rng = np.random.default_rng(3)
    logs = np.repeat(-rng.exponential(5, 250), 2)
    weights = rng.random(len(logs))
    one_by_one = sum(
        weight * curve([value], noise, SIXTEEN_ORDERS)[0] for value, weight in zip(logs, weights, strict=True)
    )
    assert summed(curve, logs, noise, SIXTEEN_ORDERS, weights) == pytest.approx(one_by_one, rel=1e-12)


def test_unanimous_teachers_underflow_nowhere():
    votes = np.array([[250, 0, 0], [0, 250, 0]])
    for noise in (0.01, 0.1, 1.0, 4.0):
        for log_q, curve in (
            (log_q_gnmax(votes, noise), gnmax_rdp),
            (log_q_lnmax(votes, noise), lnmax_rdp),
            (log_p_answered([250, 0], 200, noise), threshold_rdp),
        ):
            values = curve(log_q, noise, SIXTEEN_ORDERS)
            assert np.all(np.isfinite(values))
            assert np.all(values >= 0)
    assert np.all(gnmax_rdp([-math.inf], 4.0, SIXTEEN_ORDERS) == 0)
    assert np.all(lnmax_rdp([-math.inf], 4.0, SIXTEEN_ORDERS) == 0)


histograms = (
    st.integers(2, 6)
    .flatmap(
        lambda classes: st.lists(
            st.lists(st.integers(0, 200), min_size=classes, max_size=classes), min_size=1, max_size=5
        )
    )
    .map(lambda rows: [[*row[:-1], row[-1] + 1000 - sum(row)] for row in rows if sum(row) <= 1000])
)


@settings(max_examples=60, deadline=None)
@given(histograms.filter(bool), st.floats(1, 500), st.randoms(use_true_random=False))
def test_permuting_classes_changes_nothing(rows, sigma, random):
    shuffled = [random.sample(row, len(row)) for row in rows]
    assert log_q_gnmax(shuffled, sigma) == pytest.approx(log_q_gnmax(rows, sigma), rel=1e-12)
    assert log_q_lnmax(shuffled, sigma) == pytest.approx(log_q_lnmax(rows, sigma), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(histograms.filter(bool), st.floats(1, 500))
def test_data_dependent_never_exceeds_data_independent(rows, noise):
    log_p = log_p_answered(np.max(rows, axis=1), 500, noise)
    for dependent, independent in (
        (gnmax_rdp(log_q_gnmax(rows, noise), noise, SIXTEEN_ORDERS), gaussian_rdp(math.sqrt(2), noise, SIXTEEN_ORDERS)),
        (lnmax_rdp(log_q_lnmax(rows, noise), noise, SIXTEEN_ORDERS), pure_rdp(2 / noise, SIXTEEN_ORDERS)),
        (threshold_rdp(log_p, noise, SIXTEEN_ORDERS), gaussian_rdp(1, noise, SIXTEEN_ORDERS)),
    ):
        assert np.all(dependent <= independent * (1 + 1e-14))


@settings(max_examples=40, deadline=None)
@given(histograms.filter(bool), st.floats(1, 500), st.floats(1.0, 4.0))
def test_epsilon_grows_with_queries_and_falls_with_sigma(rows, sigma, factor):
    orders = reference_orders()

    def epsilon(votes, noise):
        return convert(orders, summed(gnmax_rdp, log_q_gnmax(votes, noise), noise, orders), 1e-5)[0]

    independent = convert(orders, len(rows) * gaussian_rdp(math.sqrt(2), sigma, orders), 1e-5)[0]
    less = convert(orders, len(rows) * gaussian_rdp(math.sqrt(2), sigma * factor, orders), 1e-5)[0]
    assert less <= independent
    assert epsilon(rows, sigma) <= epsilon([*rows, rows[0]], sigma) + 1e-12


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ([1, 2, 3], "labels"),
        ([[1.0, 2.0]], "integers"),
        ([[3, -1], [1, 1]], "smallest entry"),
        ([[3, 1], [1, 1]], "sum to the number of teachers"),
        ([[0, 1], [1, 0]], "one-hot"),
        ([[5]], "two classes"),
        (np.zeros((0, 3), dtype=int), "at least one query"),
        ([[True, False]], "integers"),
        ([[2**40, 0]], "supported"),
        (np.array([[2**63, 0]], dtype=np.uint64), "supported"),
    ],
)
def test_what_is_no_histogram_is_refused(array, message):
    with pytest.raises(InputError, match=message):
        check_histograms(np.asarray(array))


def test_impossible_noise_and_probabilities_are_refused():
    with pytest.raises(SettingError, match="sigma"):
        log_q_gnmax([[3, 1]], 0)
    with pytest.raises(SettingError, match="scale"):
        log_q_lnmax([[3, 1]], math.nan)
    with pytest.raises(InputError):
        gnmax_rdp([0.1], 40, SIXTEEN_ORDERS)
    with pytest.raises(InputError):
        gnmax_rdp([math.nan], 40, SIXTEEN_ORDERS)
    with pytest.raises(InputError, match="weights"):
        summed(gnmax_rdp, [-1.0, -2.0], 40, SIXTEEN_ORDERS, [1.0])


def test_log1mexp_is_accurate_at_both_ends():
    assert log1mexp([-1e-20])[0] == pytest.approx(math.log(1e-20))
    assert log1mexp([-50.0])[0] == pytest.approx(-math.exp(-50))
    assert log1mexp([0.0])[0] == -math.inf
