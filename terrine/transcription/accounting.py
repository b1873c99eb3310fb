"""What a transcription costs, what its paper says that it costs, and what noise a budget asks for.

Sound figures come from events, priced by the privacy core; the paper's from its two theorems. docs/dpsd.md derives the
difference. All of it looks at settings alone, so a run that cannot meet its budget is refused before it starts.

    >>> cost = DataCost(sigma=100.0, samples=256 * 200)
    >>> round_up(cost.epsilon(1e-5), 2), round_up(claimed_for_data(1e-3, 100.0, 10, 256 * 200, 1e-5), 2)
    (28.84, 0.05)
"""

import math
from dataclasses import dataclass
from typing import Protocol

from scipy.optimize import minimize_scalar

from terrine.errors import BudgetError, SettingError
from terrine.privacy.accounting.events import (
    Event,
    GaussianEvent,
    NonPrivateEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
)
from terrine.privacy.accounting.gaussian import mu_of, round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import delta_slack

_HEADROOM = 1 + 1e-9
_SEARCH = 60


class Cost(Protocol):
    """What a run releases, from its settings alone."""

    @property
    def event(self) -> Event:
        """All of it."""

    def remedy(self, epsilon: float, delta: float) -> str:
        """What would meet a budget, as the end of a sentence."""


@dataclass(frozen=True)
class DataCost:
    """Gradients with Gaussian noise: `samples` = bT of them, each with sensitivity 2β and noise σβ, so μ² = 4bT/σ².

    The number of clients does not enter: a record is with one of them. `coordinates`: noisy numbers in all.
    """

    sigma: float
    samples: int
    coordinates: int = 0

    @property
    def event(self) -> Event:
        """Every annotated sample."""
        return RepeatedEvent(GaussianEvent(sensitivity=2.0, sigma=self.sigma), self.samples)

    def epsilon(self, delta: float) -> float:
        """Its exact ε."""
        return price(self.event, delta)

    def remedy(self, epsilon: float, delta: float) -> str:
        """The σ that meets a budget."""
        needed = sigma_for(epsilon, delta, self.samples)
        return (
            f"set transcription.annotation.sigma to {_up(needed)} or more, annotate fewer samples, or raise the budget"
        )


@dataclass(frozen=True)
class AnswerCost:
    """Answers by randomised response: `samples` of them about each client, with ε = `answer` among `categories`."""

    answer: float
    categories: int
    samples: int

    @property
    def event(self) -> Event:
        """Every answer."""
        return RepeatedEvent(RandomisedResponseEvent(self.answer, self.categories), self.samples)

    def remedy(self, epsilon: float, delta: float) -> str:
        """The ε of one answer that meets a budget."""
        needed = answer_for(epsilon, delta, self.samples, self.categories)
        return (
            f"set transcription.annotation.epsilon to {_down(needed)} or less, annotate fewer samples, or raise the "
            "budget"
        )


@dataclass(frozen=True)
class LabelCost:
    """Private labels randomised once, before anybody learns from them: ε = `label` towards each label, once."""

    label: float
    categories: int

    @property
    def event(self) -> Event:
        """One label's answer."""
        return RandomisedResponseEvent(self.label, self.categories)

    def remedy(self, epsilon: float, delta: float) -> str:
        """The ε of a label that meets a budget."""
        return f"set transcription.annotation.epsilon to {epsilon:g} or less, or raise the budget"


@dataclass(frozen=True)
class NoCost:
    """Nothing is protected: NOT PRIVATE."""

    @property
    def event(self) -> Event:
        """No guarantee."""
        return NonPrivateEvent()

    def remedy(self, epsilon: float, delta: float) -> str:
        """There is none but noise."""
        return "set transcription.noise=secure"


def check_budget(cost: Cost, epsilon: float, delta: float) -> None:
    """Refuse a run that would cost more than its budget.

    Raises:
        BudgetError: it would; the message says what would meet the budget.
        SettingError: the lattice that noise is drawn on alone would use up δ.
    """
    if isinstance(cost, NoCost):
        return
    if isinstance(cost, DataCost) and not delta_slack(cost.coordinates, epsilon) < delta:
        raise SettingError(
            f"transcription.epsilon={epsilon:g} is too large for a guarantee at delta={delta:g}: the lattice that "
            "noise is drawn on alone would use up delta. Lower it."
        )
    found = price(cost.event, delta)
    if not found <= epsilon:
        raise BudgetError(
            f"This transcription would cost ε={round_up(found):g} at δ={delta:g}, more than its budget of "
            f"ε={epsilon:g} (the paper's theorem does not hold: docs/dpsd.md). Nothing was drawn and nothing charged: "
            f"{cost.remedy(epsilon, delta)}."
        )


def sigma_for(epsilon: float, delta: float, samples: int) -> float:
    """The smallest σ at which `samples` annotated samples cost `epsilon`: 2 √samples / μ."""
    _require(epsilon, samples)
    return 2 * math.sqrt(samples) / mu_of(epsilon, delta) * _HEADROOM


def answer_for(epsilon: float, delta: float, samples: int, categories: int) -> float:
    """The largest ε of one answer at which `samples` answers cost `epsilon`, found by bisection, from below."""
    _require(epsilon, samples)
    low, high = 0.0, epsilon
    for _ in range(_SEARCH):
        middle = (low + high) / 2
        within = price(RepeatedEvent(RandomisedResponseEvent(middle, categories), samples), delta) <= epsilon
        low, high = (middle, high) if within else (low, middle)
    return low


def claimed_for_data(beta: float, sigma: float, classes: int, samples: int, delta: float) -> float:
    """ε by the paper's Theorem 1: the minimum over q > 1 of 2β²c·bT·q/σ² + log((q−1)/q) − log(qδ)/(q−1).

    It counts β in the sensitivity and leaves it out of the noise, whose deviation is σβ. No guarantee.
    """
    if not (beta > 0 and sigma > 0 and classes > 0 and samples > 0 and 0 < delta < 1):
        raise SettingError("The paper's ε needs positive beta, sigma, classes and samples, and delta in (0, 1).")
    slope = 2 * beta**2 * classes * samples / sigma**2

    def bound(log_excess: float) -> float:
        excess = math.exp(log_excess)
        order = 1 + excess
        return slope * order + math.log(excess / order) - (math.log(delta) + math.log(order)) / excess

    found = minimize_scalar(bound, bounds=(-7.0, 21.0), method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(found.fun))


def per_coordinate_cost(sigma: float, classes: int, samples: int) -> Event:
    """What Lemma 1's sensitivity, 2β√c, costs with the noise that is really drawn. Larger than need be."""
    return RepeatedEvent(GaussianEvent(sensitivity=2.0 * math.sqrt(classes), sigma=sigma), samples)


def _require(epsilon: float, samples: int) -> None:
    if not 0 < epsilon < math.inf or samples < 1:
        raise SettingError(f"A budget needs epsilon above 0 and at least one sample, got {epsilon!r} and {samples!r}.")


def _up(value: float) -> str:
    return f"{math.ceil(value * 100) / 100:g}"


def _down(value: float) -> str:
    digits = max(0, 3 - math.floor(math.log10(value))) if value > 0 else 3
    return f"{math.floor(value * 10**digits) / 10**digits:g}"
