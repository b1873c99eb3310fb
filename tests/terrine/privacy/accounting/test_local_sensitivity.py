import math

import numpy as np
import pytest

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.data_dependent import gnmax_rdp, log_p_answered, log_q_gnmax, threshold_rdp
from terrine.privacy.accounting.local_sensitivity import (
    AnswerPrice,
    answer_sensitivities,
    summed_answer_sensitivity,
    summed_threshold_sensitivity,
    threshold_sensitivities,
)
from terrine.privacy.accounting.sanitize import smooth_sensitivity
from tests.terrine.privacy.accounting.helpers import random_histograms


def plain_answer_sensitivity(counts, sigma, order):
    """The two strategies of Appendix B, one vote at a time."""
    price, teachers = AnswerPrice(sigma, len(counts), order), sum(counts)
    result = [price.plateau] * teachers
    counts = sorted(counts, reverse=True)
    log_q = log_q_gnmax([counts], sigma)[0]
    doubt = log_q < price.log_q1
    for distance in range(teachers):
        if price.log_q1 <= log_q <= price.log_q0 or doubt != (log_q < price.log_q1):
            break
        result[distance] = price.local_sensitivity(np.array([log_q]))[0]
        if doubt:
            counts[0] -= 1
            counts[1] += 1
            if counts[0] < counts[1]:
                break
        else:
            if counts[1] == 0:
                break
            counts[0] += 1
            counts[1] -= 1
            counts = [counts[0], *sorted(counts[1:], reverse=True)]
        log_q = log_q_gnmax([counts], sigma)[0]
    return result


def test_q0_q1_plateau_and_conditions_equal_the_reference(golden):
    for row in golden["logq0"]:
        price = AnswerPrice(row["sigma"], row["num_classes"], row["order"])
        assert price.log_q0 == pytest.approx(row["logq0"], rel=1e-10)
        assert price.log_q1 == pytest.approx(row["logq1"], rel=1e-10)
        assert price.plateau == pytest.approx(row["plateau"], rel=1e-10)
        assert price.conditions() == (row["C5"], row["C6"])


def test_local_and_smooth_sensitivities_of_answers_equal_the_reference(golden):
    for row in golden["local_sens_gnmax"]:
        local = answer_sensitivities(golden.votes(row["votes"]), row["sigma"], row["order"])
        assert local == pytest.approx(golden.array(row["file"]), rel=1e-10, abs=1e-300)
        for beta, values in row["smooth"].items():
            assert [smooth_sensitivity(one, float(beta)) for one in local] == pytest.approx(values, rel=1e-10)


def test_local_and_smooth_sensitivities_of_tests_equal_the_reference(golden):
    for row in golden["local_sens_threshold"]:
        local = threshold_sensitivities(row["max_counts"], row["num_teachers"], row["T"], row["sigma1"], row["order"])
        # Differences of nearly equal prices: 1e-16 is the rounding of a price.
        assert local == pytest.approx(golden.array(row["file"]), rel=1e-10, abs=1e-16)
        for beta, values in row["smooth"].items():
            assert [smooth_sensitivity(one, float(beta)) for one in local] == pytest.approx(values, rel=1e-10)


def test_brute_force_over_all_neighbours_is_never_above_the_bound(golden):
    for case in golden["brute_force_local_sens"]:
        bounds = answer_sensitivities([row["votes"] for row in case["rows"]], case["sigma"], case["order"])
        for row, local in zip(case["rows"], bounds, strict=True):
            assert local == pytest.approx(row["alg"], rel=1e-10, abs=1e-14)
            assert np.all(np.array(row["brute_max_ls_within_d"]) <= local * (1 + 1e-9) + 1e-14)


def test_our_own_brute_force_is_never_above_the_bound():
    """Every histogram of 9 teachers over 3 classes: change of the price to any neighbour, at any distance."""
    teachers, sigma, order = 9, 1.5, 1.6
    price = AnswerPrice(sigma, 3, order)
    assert price.conditions() == (True, True)
    every = np.array([(a, b, teachers - a - b) for a in range(teachers + 1) for b in range(teachers + 1 - a)])
    value = gnmax_rdp(log_q_gnmax(every, sigma), sigma, [order])[:, 0]
    # Moving one vote: half the L1 distance of the histograms.
    apart = np.abs(every[:, None] - every[None]).sum(axis=2) // 2
    local = np.where(apart == 1, np.abs(value[:, None] - value[None]), 0.0).max(axis=1)
    bound = answer_sensitivities(every, sigma, order)
    assert local.max() > 0
    for distance in range(teachers):
        within = np.where(apart <= distance, local, 0.0).max(axis=1)
        assert np.all(within <= np.maximum.accumulate(bound, axis=1)[:, distance] + 1e-12)


@pytest.mark.parametrize(
    ("teachers", "classes", "sigma", "order"),
    [
        (2, 2, 1.0, 1.5),
        (30, 2, 3.0, 2.0),
        (40, 7, 4.0, 3.0),
        (41, 30, 2.0, 2.0),
        (120, 10, 4.0, 2.0),
        (90, 4, 60.0, 8.0),
    ],
)
def test_sensitivities_equal_the_strategies_step_by_step(teachers, classes, sigma, order):
    votes = random_histograms(12, teachers, classes, seed=teachers + classes)
    fast = answer_sensitivities(votes, sigma, order)
    for counts, local in zip(votes.tolist(), fast, strict=True):
        assert local == pytest.approx(plain_answer_sensitivity(counts, sigma, order), rel=1e-9, abs=1e-300)


def test_the_sum_equals_query_after_query():
    votes = np.concatenate([random_histograms(40, 120, 6, seed=2)] * 2)
    weights = np.random.default_rng(0).random(len(votes))
    each = answer_sensitivities(votes, 8.0, 3.0)
    assert summed_answer_sensitivity(votes, 8.0, 3.0, weights) == pytest.approx(weights @ each, rel=1e-11)
    assert summed_answer_sensitivity(votes, 8.0, 3.0) == pytest.approx(each.sum(axis=0), rel=1e-11)


def test_blocks_of_rows_and_points_do_not_show(monkeypatch):
    votes = random_histograms(40, 60, 6, seed=2)
    whole = answer_sensitivities(votes, 5.0, 3.0)
    monkeypatch.setattr("terrine.privacy.accounting.vote_walks._HELD", 200)
    monkeypatch.setattr("terrine.privacy.accounting.vote_walks._POINTS", 17)
    assert np.array_equal(answer_sensitivities(votes, 5.0, 3.0), whole)


def test_permuting_classes_changes_nothing():
    votes = random_histograms(30, 100, 8, seed=5)
    shuffled = np.random.default_rng(1).permuted(votes, axis=1)
    assert np.array_equal(answer_sensitivities(votes, 10.0, 4.0), answer_sensitivities(shuffled, 10.0, 4.0))


def test_unanimous_teachers_with_little_noise_underflow_nowhere():
    votes = np.array([[250, 0, 0, 0]] * 2 + [[249, 1, 0, 0]])
    for sigma, order in ((1.0, 1.2), (2.0, 2.0), (4.0, 3.0)):
        local = answer_sensitivities(votes, sigma, order)
        assert np.all(np.isfinite(local))
        assert np.all(local >= 0)
        assert local[0, 0] < 1e-50 < local[0, -1]


def test_where_even_unanimity_is_charged_in_full_there_is_no_sensitivity():
    votes = np.array([[20, 0], [10, 10]])
    assert AnswerPrice(100.0, 2, 2.0).always_independent(20)
    assert np.all(summed_answer_sensitivity(votes, 100.0, 2.0) == 0)
    assert not AnswerPrice(40.0, 10, 16.5).always_independent(250)


def test_one_move_stays_between_the_bounds_on_q():
    votes = random_histograms(40, 30, 4, seed=9)
    price = AnswerPrice(6.0, 4, 2.0)
    log_q = log_q_gnmax(votes, 6.0)
    for counts, here in zip(votes, log_q, strict=True):
        low, high = price.down(np.array([here]))[0], price.up(np.array([here]))[0]
        for giver in np.flatnonzero(counts):
            for taker in range(4):
                moved = counts.copy()
                moved[giver] -= 1
                moved[taker] += 1
                assert low - 1e-9 <= log_q_gnmax([moved], 6.0)[0] <= high + 1e-9


def test_tests_equal_a_loop_over_their_largest_counts():
    teachers, threshold, sigma1, order = 40, 25.0, 5.0, 3.0
    price = threshold_rdp(log_p_answered(np.arange(teachers + 1), threshold, sigma1), sigma1, [order])[:, 0]

    def at(count):
        if not 0 <= count <= teachers:
            return 0.0
        near = [abs(price[count + step] - price[count]) for step in (-1, 1) if 0 <= count + step <= teachers]
        return max(near)

    counts = [0, 3, 24, 25, 26, 40, 26]
    fast = threshold_sensitivities(counts, teachers, threshold, sigma1, order)
    for count, local in zip(counts, fast, strict=True):
        assert local == pytest.approx([max(at(count + d), at(count - d)) for d in range(teachers)])
    within = np.maximum.accumulate(fast, axis=1).sum(axis=0)
    assert summed_threshold_sensitivity(counts, teachers, threshold, sigma1, order) == pytest.approx(within)


def test_margins_of_interactive_are_rounded():
    assert np.array_equal(
        threshold_sensitivities([12.4, 11.5], 40, 25.0, 5.0, 3.0), threshold_sensitivities([12, 12], 40, 25.0, 5.0, 3.0)
    )


def test_impossible_arguments_are_refused():
    with pytest.raises(InputError, match="from 0 to 40"):
        threshold_sensitivities([41], 40, 25.0, 5.0, 3.0)
    with pytest.raises(InputError, match="weights"):
        summed_answer_sensitivity([[3, 1]], 5.0, 3.0, [1.0, 1.0])
    with pytest.raises(InputError, match="weights"):
        summed_answer_sensitivity([[3, 1]], 5.0, 3.0, [-1.0])
    for arguments in ((0.0, 10, 2.0), (1.0, 1, 2.0), (1.0, 10, 1.0), (1.0, 10, math.inf)):
        with pytest.raises(SettingError):
            AnswerPrice(*arguments)
