"""How much noise a budget asks for, and what a larger budget or more teachers would buy.

Calibration looks at public quantities only: the budget, how many queries are tested and answered, how many teachers
there are. It inverts the exact Gaussian accounting of `gaussian`: q threshold tests with noise σ1 and a answers with
noise σ cost μ² = q/σ1² + 2a/σ².

    >>> calibrate(epsilon=2.0, delta=1e-5, answers=5000).sigma
    199.381244...
"""

import math
from dataclasses import dataclass

import scipy  # loads its parts where they are used: settings are read without

from terrine.errors import BudgetError, SettingError
from terrine.privacy.accounting.events import Event, RepeatedEvent, compose, threshold_test, vote_answer
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared

# Rounding up σ by this much keeps the sum of the costs, however it is added up, below the limit.
_HEADROOM = 1 + 1e-9
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Calibration:
    """Noise for a budget, and what it means for an ensemble.

    Args:
        answers: Number of answers a that the budget pays for.
        sigma: Standard deviation of the noise on each count, in votes.
        tests: Number of threshold tests q.
        sigma1: Their noise, in votes; None without tests.
    """

    epsilon: float
    delta: float
    answers: int
    sigma: float
    tests: int = 0
    sigma1: float | None = None

    @property
    def event(self) -> Event:
        """All the answers and tests."""
        answers: Event = RepeatedEvent(vote_answer(self.sigma), self.answers)
        if self.sigma1 is None:
            return answers
        return compose(RepeatedEvent(threshold_test(self.sigma1), self.tests), answers)

    @property
    def epsilon_exact(self) -> float:
        """Exact ε of all of it, never above the budget."""
        return epsilon_of(math.sqrt(mu_squared(self.event)), self.delta)


@dataclass(frozen=True)
class Purchase:
    """What one choice of budget and ensemble buys.

    Args:
        sigma: Noise for the number of answers that was asked for, in votes.
        share: That noise as a share of the votes, σ/N.
        clear_lead: The lead of the plurality over one rival, as a share of the votes, that survives the noise with
            95 % probability: 1.645 · √2 σ/N.
        answers: How many answers the budget pays for at the noise share of the first row.
    """

    change: str
    epsilon: float
    teachers: int
    sigma: float
    share: float
    clear_lead: float
    answers: int


def calibrate(
    epsilon: float, delta: float, answers: int, *, tests: int = 0, sigma1: float | None = None
) -> Calibration:
    """The smallest noise σ at which `answers` answers, after `tests` threshold tests, cost at most `epsilon`.

    Args:
        sigma1: Noise of the tests, in votes; needed where there are tests.

    Raises:
        BudgetError: the tests alone pass the budget.
        SettingError: an impossible number, or tests without their noise.
    """
    _require_count("answers", answers, 1)
    left = _mu_squared_for_answers(epsilon, delta, tests, sigma1)
    sigma = math.sqrt(2 * answers / left) * _HEADROOM
    return Calibration(epsilon, delta, answers, sigma, tests, sigma1 if tests else None)


def affordable_answers(
    epsilon: float, delta: float, sigma: float, *, tests: int = 0, sigma1: float | None = None
) -> int:
    """How many answers with noise `sigma` the budget pays for; arguments and errors as for `calibrate`."""
    if not (sigma > 0 and math.isfinite(sigma)):
        raise SettingError(f"sigma must be a positive number, got {sigma!r}.")
    left = _mu_squared_for_answers(epsilon, delta, tests, sigma1)
    return math.floor(left * sigma * sigma / 2)


def purchases(
    epsilon: float, delta: float, answers: int, teachers: int, *, tests: int = 0, sigma1: float | None = None
) -> list[Purchase]:
    """What the budget buys as asked, with one more unit of ε, with twice the teachers, and with both.

    σ does not depend on the number of teachers, so that twice the teachers halve the noise in every vote's share; or,
    at the same share, pay for four times the answers. The tests keep their noise's share of the votes as well.

    Args:
        teachers: Number of teachers N, ≥ 2.
        sigma1: Noise of the tests, in votes.

    Raises:
        BudgetError: the tests alone pass the budget.
        SettingError: an impossible number, or tests without their noise.
    """
    _require_count("teachers", teachers, 2)
    asked = calibrate(epsilon, delta, answers, tests=tests, sigma1=sigma1)
    rows = []
    for change, budget, factor in (
        ("as asked", epsilon, 1),
        ("one more unit of ε", epsilon + 1, 1),
        ("twice the teachers", epsilon, 2),
        ("both", epsilon + 1, 2),
    ):
        noise = None if sigma1 is None else sigma1 * factor
        sigma = calibrate(budget, delta, answers, tests=tests, sigma1=noise).sigma
        at_same_share = affordable_answers(budget, delta, asked.sigma * factor, tests=tests, sigma1=noise)
        share = sigma / (teachers * factor)
        rows.append(
            Purchase(
                change=change,
                epsilon=budget,
                teachers=teachers * factor,
                sigma=sigma,
                share=share,
                clear_lead=float(scipy.special.ndtri(_CONFIDENCE)) * math.sqrt(2) * share,
                answers=at_same_share,
            )
        )
    return rows


def _mu_squared_for_answers(epsilon: float, delta: float, tests: int, sigma1: float | None) -> float:
    """What is left of the budget's μ² after the tests."""
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
