import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrine.errors import BudgetError, SettingError
from terrine.privacy.accounting.calibrate import calibrate
from terrine.privacy.accounting.events import threshold_test, vote_answer
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from tests.spending import Spending


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 30), st.floats(1e-10, 1e-2), st.integers(1, 10**6))
def test_the_noise_spends_the_budget_and_no_more(epsilon, delta, answers):
    found = calibrate(epsilon, delta, answers)
    assert found.epsilon_exact <= epsilon
    assert found.epsilon_exact == pytest.approx(epsilon, rel=1e-6)
    assert calibrate(epsilon, delta, answers + 1).sigma > found.sigma


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
    for sigma, answers in ((40.0, 201), (240.0, 7244)):
        assert calibrate(2.0, 1e-5, answers).sigma <= sigma < calibrate(2.0, 1e-5, answers + 1).sigma


def test_a_budget_is_calibrated_by_trying_every_noise():
    found = calibrate(1.0, 1e-5, 50).sigma
    tried = next(sigma / 100 for sigma in range(100, 100_000) if epsilon_of(math.sqrt(100) / (sigma / 100), 1e-5) <= 1)
    assert tried - 0.01 <= found <= tried


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
    ],
)
def test_impossible_numbers_are_refused(call):
    with pytest.raises(SettingError):
        call()
