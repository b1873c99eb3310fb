import math

import numpy as np
import pytest
from scipy.stats import nbinom

from terrine.errors import SettingError
from terrine.privacy.accounting.events import vote_answer
from terrine.privacy.accounting.renyi import convert, default_orders, rdp_of_event
from terrine.privacy.accounting.selection import repeat_and_select_rdp, success_probability


@pytest.mark.parametrize(("mean", "shape"), [(1, 1), (10, 1), (10, 0), (1.5, 0.5), (5, 2.5), (1000, 0), (20, math.inf)])
@pytest.mark.parametrize("delta", [1e-9, 1e-5])
def test_the_price_of_a_search_equals_dp_accountings(mean, shape, delta):
    from dp_accounting import dp_event, rdp

    orders = default_orders()[::6]
    accountant = rdp.RdpAccountant(list(orders))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(3.0), mean, shape))
    curve = repeat_and_select_rdp(orders, orders / 18, mean, shape)
    assert convert(orders, curve, delta)[0] == pytest.approx(accountant.get_epsilon(delta), rel=1e-9)


@pytest.mark.parametrize("shape", [0.3, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("mean", [1.2, 7.0, 300.0])
def test_the_success_probability_gives_the_mean(mean, shape):
    gamma = success_probability(mean, shape)
    # A negative binomial variable given that it is not zero.
    untruncated = nbinom(shape, gamma)
    assert untruncated.mean() / (1 - untruncated.pmf(0)) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("mean", [1.2, 7.0, 300.0])
def test_the_logarithmic_distribution_has_its_mean(mean):
    gamma = success_probability(mean, 0)
    k = np.arange(1, 200_000)
    assert np.sum((1 - gamma) ** k / math.log(1 / gamma)) == pytest.approx(mean, rel=1e-6)


def test_one_run_of_a_geometric_search_costs_no_less_than_the_run():
    orders = default_orders()
    run = rdp_of_event(vote_answer(10), orders)
    assert np.all(repeat_and_select_rdp(orders, run, 1, 1) >= run)


@pytest.mark.parametrize(("mean", "shape"), [(0.5, 1), (math.inf, 1), (2, -1), (math.nan, 0)])
def test_an_impossible_search_is_refused(mean, shape):
    with pytest.raises(SettingError):
        repeat_and_select_rdp(default_orders(), default_orders(), mean, shape)
