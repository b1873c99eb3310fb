"""Noise for a budget.

Calibration uses only public quantities: the budget and the numbers of tests and answers. It inverts the exact Gaussian
accounting (`gaussian`): q threshold tests with noise σ1 and a answers with noise σ cost μ² = q/σ1² + 2a/σ².

    >>> calibrate(epsilon=2.0, delta=1e-5, answers=5000).sigma
    199.381244...
"""

import math
from dataclasses import dataclass

from terrine.errors import BudgetError, SettingError
from terrine.privacy.accounting.events import Event, RepeatedEvent, compose, threshold_test, vote_answer
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared

# Rounding up σ by this much keeps the sum of the costs, however it is added up, below the limit.
_HEADROOM = 1 + 1e-9


@dataclass(frozen=True)
class Calibration:
    """Noise for a budget.

    Attributes:
        epsilon: ε of the budget.
        delta: δ of the budget.
        answers: Number of answers a.
        sigma: Standard deviation of the noise on each count, in votes.
        tests: Number of threshold tests q.
        sigma1: Noise of the tests, in votes; None without tests.
    """

    epsilon: float
    delta: float
    answers: int
    sigma: float
    tests: int = 0
    sigma1: float | None = None

    @property
    def event(self) -> Event:
        """Cost of all answers and tests."""
        answers: Event = RepeatedEvent(vote_answer(self.sigma), self.answers)
        if self.sigma1 is None:
            return answers
        return compose(RepeatedEvent(threshold_test(self.sigma1), self.tests), answers)

    @property
    def epsilon_exact(self) -> float:
        """Exact ε of all answers and tests, at most the budget."""
        return epsilon_of(math.sqrt(mu_squared(self.event)), self.delta)


def calibrate(
    epsilon: float, delta: float, answers: int, *, tests: int = 0, sigma1: float | None = None
) -> Calibration:
    """Return the smallest noise σ at which `answers` answers and `tests` threshold tests cost at most `epsilon`.

    Args:
        epsilon: ε of the budget.
        delta: δ of the budget.
        answers: Number of answers.
        tests: Number of threshold tests.
        sigma1: Noise of the tests, in votes; required with tests.

    Raises:
        BudgetError: If the threshold tests exceed the budget without any answer.
        SettingError: If a number is invalid, or the noise of the tests is missing.
    """
    _require_count("answers", answers, 1)
    left = _mu_squared_for_answers(epsilon, delta, tests, sigma1)
    sigma = math.sqrt(2 * answers / left) * _HEADROOM
    return Calibration(epsilon, delta, answers, sigma, tests, sigma1 if tests else None)


def _mu_squared_for_answers(epsilon: float, delta: float, tests: int, sigma1: float | None) -> float:
    """Return the μ² left by the tests."""
    if not epsilon > 0:
        raise SettingError(f"epsilon must be greater than 0, got {epsilon!r}.")
    _require_count("tests", tests, 0)
    limit = mu_of(epsilon, delta) ** 2
    if not tests:
        return limit
    if sigma1 is None:
        raise SettingError(f"{tests} threshold tests need their noise: give sigma1.")
    spent = mu_squared(RepeatedEvent(threshold_test(sigma1), tests))
    if spent >= limit:
        raise BudgetError(
            f"{tests} threshold tests with sigma1={sigma1:g} alone use up ε={epsilon:g} at δ={delta:g}: "
            f"test fewer queries or take sigma1 well above {math.sqrt(tests / limit):.6g}."
        )
    return limit - spent


def _require_count(name: str, value: int, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise SettingError(f"{name} must be a whole number ≥ {minimum}, got {value!r}.")
