import math

import numpy as np
import pytest

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


def published_rdp(order, beta, sigma_ss):
    """Theorem 23 of Papernot et al. 2018, which the reference computes: for 2αβ near 1 it is no bound."""
    width = -0.5 * math.log1p(-2 * order * beta) + beta * order
    return order * math.exp(2 * beta) / sigma_ss**2 + width / (order - 1)


def divergence(order, mean, one, other):
    """D_α(N(mean, one²) ‖ N(0, other²)), integrated: on a lattice, which for a Gaussian is as good as exact."""
    # The integrand is a Gaussian again.
    precision = order / one**2 - (order - 1) / other**2
    centre, width = order * mean / one**2 / precision, 1 / math.sqrt(precision)
    x, step = np.linspace(centre - 14 * width, centre + 14 * width, 1001, retstep=True)

    def log_density(centre, deviation):
        return -((x - centre) ** 2) / (2 * deviation**2) - math.log(deviation * math.sqrt(2 * math.pi))

    exponents = order * log_density(mean, one) + (1 - order) * log_density(0, other)
    largest = exponents.max()
    return (largest + math.log(step * np.exp(exponents - largest).sum())) / (order - 1)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.4, 0.49])
@pytest.mark.parametrize("order", [1.5, 7.0, 21.0])
@pytest.mark.parametrize("sigma_ss", [2.0, 8.0])
def test_no_pair_of_neighbours_costs_more_than_is_charged_and_one_costs_all_of_it(order, share, sigma_ss):
    beta = share / order
    costs = [
        divergence(order, min(1, ratio), sigma_ss, sigma_ss * ratio)
        for ratio in np.exp(beta * np.linspace(-1, 1, 7))  # SS' over SS, both ways
    ]
    assert max(costs) == pytest.approx(release_rdp(order, beta, sigma_ss), rel=1e-9)


def test_votes_exist_that_cost_more_than_the_published_bound():
    """Two histograms one vote apart, and the smooth sensitivities that they have."""
    sigma, order, sigma_ss = 40.0, 21.0, 8.0
    beta = 0.4 / order
    figures = []
    for votes in ([175, 75], [176, 74]):
        price = summed(gnmax_rdp, log_q_gnmax([votes], sigma), sigma, [order])[0]
        figures.append((price, smooth_sensitivity(summed_answer_sensitivity([votes], sigma, order), beta)))
    (one, wide), (other, narrow) = sorted(figures, key=lambda figure: -figure[1])
    cost = divergence(order, one - other, wide * sigma_ss, narrow * sigma_ss)
    assert published_rdp(order, beta, sigma_ss) < 0.41
    assert 0.74 < cost <= release_rdp(order, beta, sigma_ss)


def test_the_reference_computes_the_published_bound(golden):
    for row in golden["gnss_rdp"]:
        assert published_rdp(row["order"], row["beta"], row["sigma"]) == pytest.approx(row["rdp"], rel=1e-12)


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

        best = optimised(rdp, local, delta, order=order, conversion="classical")
        for reference in (row["optimised"], row["fixed"]):
            chosen = {"order": order, "beta": reference["beta"], "sigma_ss": reference["sigma_ss"]}
            figure = sanitised(rdp, local, delta, **chosen, conversion="classical")
            assert figure.smooth_sensitivity == pytest.approx(reference["ss"], rel=1e-10)
            assert figure.standard_deviation == pytest.approx(reference["sanitised_std"], rel=1e-10)
            # As the reference has it, but for what the release itself costs (Theorem 23).
            assert published_rdp(**chosen) == pytest.approx(reference["release_rdp"], rel=1e-10)
            assert figure.release_rdp == release_rdp(**chosen)
            dearer = release_rdp(**chosen) - published_rdp(**chosen)
            if "sanitised_mean" in reference:
                assert figure.mean == pytest.approx(reference["sanitised_mean"] + dearer, rel=1e-10)
            assert best.mean + 2 * best.standard_deviation <= figure.mean + 2 * figure.standard_deviation + 1e-12


def test_smooth_sensitivity_is_the_largest_discounted_value():
    local = [0.1, 0.5, 0.3, 2.0]
    assert smooth_sensitivity(local, 0) == 2.0
    assert smooth_sensitivity(local, 0.5) == max(value * math.exp(-0.5 * d) for d, value in enumerate(local))


def test_a_neighbours_smooth_sensitivity_is_within_e_to_the_beta():
    """The noise is safe because SS of histograms one move apart differs by at most a factor e^β."""
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
