import math

import numpy as np
import pytest
from privacy_votes_help import Golden

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.data_dependent import gnmax_rdp, log_p_answered, log_q_gnmax, summed, threshold_rdp
from terrine.privacy.accounting.local_sensitivity import (
    AnswerPrice,
    summed_answer_sensitivity,
    summed_threshold_sensitivity,
)
from terrine.privacy.accounting.renyi import convert
from terrine.privacy.accounting.sanitize import (
    optimised,
    release,
    release_rdp,
    restricted_order,
    sanitised,
    smooth_sensitivity,
)


@pytest.fixture(scope="module")
def golden(shared_folder):
    return Golden(shared_folder)


def test_the_cost_of_a_release_equals_the_reference(golden):
    for row in golden["gnss_rdp"]:
        assert release_rdp(row["order"], row["beta"], row["sigma"]) == pytest.approx(row["rdp"], rel=1e-12)


def test_sanitised_figures_equal_the_reference(golden):
    for row in golden["sanitised"]:
        votes = golden.votes(row["dataset"])[: row["queries"]]
        sigma, order, delta = row["sigma2"], row["order"], row["delta"]
        weights, rdp, local = np.ones(len(votes)), 0.0, 0.0
        if row["T"] is not None:
            largest = votes.max(axis=1)
            log_p = log_p_answered(largest, row["T"], row["sigma1"])
            weights = np.exp(log_p)
            rdp = summed(threshold_rdp, log_p, row["sigma1"], [order])[0]
            local = summed_threshold_sensitivity(largest, row["teachers"], row["T"], row["sigma1"], order)
        rdp += summed(gnmax_rdp, log_q_gnmax(votes, sigma), sigma, [order], weights)[0]
        local = local + summed_answer_sensitivity(votes, sigma, order, weights)
        assert rdp == pytest.approx(row["rdp"], rel=1e-10)
        assert convert([order], [rdp], delta, "classical")[0] == pytest.approx(row["eps_before_ss"], rel=1e-10)

        best, reference = optimised(rdp, local, delta, order=order, conversion="classical"), row["optimised"]
        assert best.beta == pytest.approx(reference["beta"], rel=1e-10)
        assert best.smooth_sensitivity == pytest.approx(reference["ss"], rel=1e-10)
        assert best.sigma_ss == pytest.approx(reference["sigma_ss"], rel=1e-10)
        assert best.release_rdp == pytest.approx(reference["release_rdp"], rel=1e-10)
        assert best.mean == pytest.approx(reference["sanitised_mean"], rel=1e-10)
        assert best.standard_deviation == pytest.approx(reference["sanitised_std"], rel=1e-10)

        fixed, reference = row["fixed"], row["fixed"]
        figure = sanitised(
            rdp,
            local,
            delta,
            order=order,
            beta=fixed["beta"],
            sigma_ss=fixed["sigma_ss"],
            conversion="classical",
        )
        assert figure.smooth_sensitivity == pytest.approx(reference["ss"], rel=1e-10)
        assert figure.release_rdp == pytest.approx(reference["release_rdp"], rel=1e-10)
        assert figure.standard_deviation == pytest.approx(reference["sanitised_std"], rel=1e-10)


def test_smooth_sensitivity_is_the_largest_discounted_value():
    local = [0.1, 0.5, 0.3, 2.0]
    assert smooth_sensitivity(local, 0) == 2.0
    assert smooth_sensitivity(local, 0.5) == max(value * math.exp(-0.5 * d) for d, value in enumerate(local))


def test_a_neighbours_smooth_sensitivity_is_within_e_to_the_beta():
    """What makes the noise safe: SS of histograms one move apart differs by at most a factor e^β."""
    sigma, order, beta, teachers = 1.5, 1.6, 0.2, 9
    every = [(a, b, teachers - a - b) for a in range(teachers + 1) for b in range(teachers + 1 - a)]
    smooth = {votes: smooth_sensitivity(summed_answer_sensitivity([votes], sigma, order), beta) for votes in every}
    for votes, value in smooth.items():
        for giver in range(3):
            for taker in range(3):
                moved = list(votes)
                moved[giver] -= 1
                moved[taker] += 1
                if min(moved) >= 0:
                    assert value <= smooth[tuple(moved)] * math.exp(beta) * (1 + 1e-9)


def test_no_other_noise_gives_a_smaller_mean_plus_two_deviations():
    local = np.minimum(0.01 * np.arange(1, 200), 0.4)
    best = optimised(0.8, local, 1e-5, order=10.0)
    for beta in np.arange(1, 50) * 0.001:
        for sigma_ss in np.geomspace(0.5, 50, 80):
            other = sanitised(0.8, local, 1e-5, order=10.0, beta=float(beta), sigma_ss=float(sigma_ss))
            assert best.mean + 2 * best.standard_deviation <= other.mean + 2 * other.standard_deviation + 1e-12


def test_given_parameters_are_kept():
    figure = optimised(0.8, [0.1, 0.2], 1e-5, order=10.0, beta=0.03, sigma_ss=9.0)
    assert (figure.beta, figure.sigma_ss) == (0.03, 9.0)
    assert optimised(0.8, [0.1, 0.2], 1e-5, order=10.0, sigma_ss=9.0).sigma_ss == 9.0
    assert optimised(0.8, [0.1, 0.2], 1e-5, order=10.0, beta=0.03).beta == 0.03


def test_a_value_without_sensitivity_costs_nothing_to_release():
    figure = optimised(0.8, np.zeros(50), 1e-5, order=10.0)
    assert figure.standard_deviation == 0
    assert figure.mean == convert([10.0], [0.8], 1e-5)[0]


def test_a_release_is_the_mean_plus_scaled_noise_and_never_negative():
    figure = sanitised(0.8, [0.1, 0.2], 1e-5, order=10.0, beta=0.03, sigma_ss=9.0)
    assert release(figure, lambda: 1.5) == figure.mean + 1.5 * figure.standard_deviation
    assert release(figure, lambda: -1e9) == 0


def test_the_order_is_restricted_to_where_the_conditions_hold():
    orders = np.array([2.0, 20.0, 64.0, 100.0])
    assert AnswerPrice(40.0, 10, 64.0).conditions() == (True, False)
    assert restricted_order([3.0, 2.0, 1.0, 0.5], orders, 40.0, 10) == 20.0
    assert restricted_order([1.0, 2.0, 3.0, 4.0], orders, 40.0, 10) == 2.0
    with pytest.raises(SettingError, match="smaller orders"):
        restricted_order([1.0, 2.0], [64.0, 100.0], 40.0, 10)


@pytest.mark.parametrize(
    ("order", "beta", "sigma_ss"), [(10.0, 0.05, 1.0), (1.0, 0.01, 1.0), (2.0, -0.1, 1.0), (2.0, 0.1, 0.0)]
)
def test_parameters_outside_the_theorem_are_refused(order, beta, sigma_ss):
    with pytest.raises(SettingError):
        release_rdp(order, beta, sigma_ss)


def test_impossible_local_sensitivities_are_refused():
    for local in ([], [[1.0]], [-1.0], [math.nan]):
        with pytest.raises(InputError):
            smooth_sensitivity(local, 0.1)
    with pytest.raises(SettingError):
        smooth_sensitivity([1.0], -0.1)
