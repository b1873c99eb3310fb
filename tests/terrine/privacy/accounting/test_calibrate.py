import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrine.errors import BudgetError, SettingError
from terrine.privacy.accounting.calibrate import affordable_answers, calibrate, purchases
from terrine.privacy.accounting.events import threshold_test, vote_answer
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from tests.spending import Spending


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 30), st.floats(1e-10, 1e-2), st.integers(1, 10**6))
def test_the_noise_spends_the_budget_and_no_more(epsilon, delta, answers):
    found = calibrate(epsilon, delta, answers)
    assert found.epsilon_exact <= epsilon
    assert found.epsilon_exact == pytest.approx(epsilon, rel=1e-6)
    assert affordable_answers(epsilon, delta, found.sigma) == answers


def test_a_filter_affords_exactly_the_answers_that_were_calibrated_for():
    found = calibrate(2.0, 1e-5, 300, tests=640, sigma1=600.0)
    budget = Spending(2.0, 1e-5)
    for _ in range(640):
        budget.spend(threshold_test(600.0))
    for _ in range(300):
        budget.spend(vote_answer(found.sigma))
    assert not budget.affords(vote_answer(found.sigma))
    assert mu_squared(found.event) == pytest.approx(budget.mu_squared_spent, rel=1e-12)


def test_the_figures_of_the_field_are_met():
    # At ε = 2, δ = 1e-5, σ = 40 buys about 200 answers and σ = 240 about 7,200.
    assert affordable_answers(2.0, 1e-5, 40.0) == 201
    assert affordable_answers(2.0, 1e-5, 240.0) == 7244


def test_a_budget_is_calibrated_by_trying_every_noise():
    found = calibrate(1.0, 1e-5, 50).sigma
    tried = next(sigma / 100 for sigma in range(100, 100_000) if epsilon_of(math.sqrt(100) / (sigma / 100), 1e-5) <= 1)
    assert tried - 0.01 <= found <= tried


def test_purchases_say_what_more_budget_and_more_teachers_buy():
    asked, budget, teachers, both = purchases(2.0, 1e-5, 5000, 600)
    assert (asked.answers, asked.teachers, asked.epsilon) == (5000, 600, 2.0)
    assert budget.epsilon == 3.0
    assert budget.sigma < asked.sigma
    assert budget.answers > asked.answers
    assert teachers.sigma == asked.sigma
    assert teachers.share == asked.share / 2
    assert teachers.answers == pytest.approx(4 * asked.answers, abs=1)
    assert both.answers > max(budget.answers, teachers.answers)
    assert asked.clear_lead == pytest.approx(1.6449 * math.sqrt(2) * asked.sigma / 600, rel=1e-4)


def test_tests_that_eat_the_budget_are_refused_with_a_way_out():
    with pytest.raises(BudgetError, match="sigma1 well above"):
        calibrate(1.0, 1e-5, 10, tests=640, sigma1=50.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: calibrate(0.0, 1e-5, 10),
        lambda: calibrate(1.0, 0.0, 10),
        lambda: calibrate(1.0, 1e-5, 0),
        lambda: calibrate(1.0, 1e-5, 10.0),
        lambda: calibrate(1.0, 1e-5, 10, tests=5),
        lambda: calibrate(1.0, 1e-5, 10, tests=-5, sigma1=3.0),
        lambda: calibrate(1.0, 1e-5, 10, tests=5, sigma1=0.0),
        lambda: affordable_answers(1.0, 1e-5, 0.0),
        lambda: purchases(1.0, 1e-5, 10, 1),
    ],
)
def test_impossible_numbers_are_refused(call):
    with pytest.raises(SettingError):
        call()
