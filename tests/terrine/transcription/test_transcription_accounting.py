"""Sound and claimed figures, and what would meet a budget."""

import math

import pytest

from terrine.errors import BudgetError, SettingError
from terrine.privacy.accounting.events import GaussianEvent, RandomisedResponseEvent, RepeatedEvent
from terrine.privacy.accounting.gaussian import epsilon_of
from terrine.privacy.accounting.pricing import price
from terrine.transcription.accounting import (
    AnswerCost,
    DataCost,
    LabelCost,
    NoCost,
    answer_for,
    check_budget,
    claimed_for_data,
    per_coordinate_cost,
    sigma_for,
)

DELTA = 1e-5
PUBLISHED = 256 * 200


def test_the_published_setting_costs_28_8_and_not_what_is_claimed():
    cost = DataCost(sigma=100.0, samples=PUBLISHED)
    assert price(cost.event, DELTA) == pytest.approx(28.8387, abs=1e-3)
    assert price(per_coordinate_cost(100.0, 10, PUBLISHED), DELTA) == pytest.approx(162.56, abs=0.01)
    assert claimed_for_data(1e-3, 100.0, 10, PUBLISHED, DELTA) < 0.05


@pytest.mark.parametrize("beta", [1e-4, 1e-3, 5e-3, 1.0])
def test_the_claim_is_the_minimum_of_theorem_1(beta):
    """Against a plain search over a grid of orders."""
    slope = 2 * beta**2 * 10 * PUBLISHED / 100.0**2

    def theorem(order):
        return slope * order + math.log((order - 1) / order) - math.log(order * DELTA) / (order - 1)

    grid = min(theorem(1 + 10 ** (place / 200)) for place in range(-600, 1600))
    assert claimed_for_data(beta, 100.0, 10, PUBLISHED, DELTA) == pytest.approx(max(0.0, grid), rel=1e-3)


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_the_sigma_of_a_budget_meets_it_and_hardly_more_noise_than_needed(epsilon):
    sigma = sigma_for(epsilon, DELTA, 1000)
    assert epsilon_of(math.sqrt(4 * 1000 / sigma**2), DELTA) <= epsilon
    assert epsilon_of(math.sqrt(4 * 1000 / (sigma * 0.999) ** 2), DELTA) > epsilon


def test_the_answer_of_a_budget_meets_it():
    answer = answer_for(4.0, DELTA, 500, 3)
    assert price(RepeatedEvent(RandomisedResponseEvent(answer, 3), 500), DELTA) <= 4.0
    assert price(RepeatedEvent(RandomisedResponseEvent(answer * 1.01, 3), 500), DELTA) > 4.0


def test_a_run_over_budget_is_refused_with_the_sigma_that_would_meet_it():
    with pytest.raises(BudgetError, match=r"ε=28\.83.*budget of ε=10 .*annotation\.sigma to 226\.23 or more"):
        check_budget(DataCost(100.0, PUBLISHED), 10.0, DELTA)
    check_budget(DataCost(226.23, PUBLISHED), 10.0, DELTA)


def test_answers_over_budget_are_refused_with_the_epsilon_that_would_meet_it():
    with pytest.raises(BudgetError, match=r"annotation\.epsilon to 0\.01081 or less"):
        check_budget(AnswerCost(1.0, 3, PUBLISHED), 10.0, DELTA)
    check_budget(AnswerCost(0.01081, 3, PUBLISHED), 10.0, DELTA)


def test_labels_cost_their_epsilon_once():
    check_budget(LabelCost(2.0, 10), 2.0, DELTA)
    with pytest.raises(BudgetError, match="to 2 or less"):
        check_budget(LabelCost(3.0, 10), 2.0, DELTA)


def test_what_guarantees_nothing_has_no_budget():
    check_budget(NoCost(), 1.0, DELTA)
    assert price(NoCost().event, DELTA) == math.inf


def test_a_budget_that_the_lattice_alone_would_use_up_is_refused():
    with pytest.raises(SettingError, match="lattice"):
        check_budget(DataCost(1.0, 10**6, coordinates=10**7), 40.0, DELTA)


def test_one_sample_is_a_gaussian_with_sensitivity_two():
    assert DataCost(7.0, 1).event == RepeatedEvent(GaussianEvent(2.0, 7.0), 1)
