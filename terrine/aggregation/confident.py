"""Confident-GNMax: answer only where the teachers agree (Papernot et al. 2018, Algorithm 1).

Every query pays a cheap noisy test of its largest count; those that pass pay for an answer besides. Under exact
accounting plain GNMax is often as good at the same ε: the test is not free.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from terrine.aggregation.mechanism import (
    NOTHING,
    UNANSWERED,
    Answers,
    affordable_repetitions,
    affordable_tests,
    budget_after,
    require_positive,
    worst_case_of_tests,
)
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.errors import SettingError
from terrine.privacy.accounting.events import Event, RepeatedEvent, compose, threshold_test, vote_answer
from terrine.privacy.noise import NoiseSource


@dataclass(frozen=True)
class ConfidentGNMax:
    """GNMax with `sigma2` where max_j n_j + N(0, sigma1²) ≥ threshold: μ² = 1/sigma1² a query, 2/sigma2² an answer.

    Attributes:
        threshold: T, in votes.
        sigma1: Standard deviation of the test's noise, in votes.
        sigma2: Standard deviation of the answer's noise on every count, in votes.
    """

    threshold: float
    sigma1: float
    sigma2: float
    name = "confident"

    def __post_init__(self) -> None:
        require_positive("Confident-GNMax", sigma1=self.sigma1, sigma2=self.sigma2)
        if not np.isfinite(self.threshold):
            raise SettingError(f"threshold of Confident-GNMax is a number of votes, got {self.threshold!r}.")

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Mechanism.worst_case`: every query tested and answered, or the run's whole budget."""
        budget = budget_after(spent, epsilon, delta)
        return worst_case_of_tests(queries, threshold_test(self.sigma1), vote_answer(self.sigma2), budget)

    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        """See `Mechanism.certain`: as many as could all be tested and answered."""
        both = compose(threshold_test(self.sigma1), vote_answer(self.sigma2))
        return affordable_repetitions(both, queries, budget_after(spent, epsilon, delta))

    def answer(
        self,
        histograms: HistogramArray,
        *,
        epsilon: float,
        delta: float,
        noise: NoiseSource,
        spent: Event = NOTHING,
    ) -> Answers:
        """See `Mechanism.answer`. It ends when the next query's test and answer together would not fit."""
        counts = validate_histograms(histograms)
        test, answer = threshold_test(self.sigma1), vote_answer(self.sigma2)
        # Tests are drawn for all queries at once; those past the end of the budget are dropped unseen.
        passed = counts.max(axis=1) + noise.gaussian(len(counts), self.sigma1) >= self.threshold
        asked = affordable_tests(passed, test, answer, budget_after(spent, epsilon, delta))
        passed[asked:] = False
        confident = np.flatnonzero(passed)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        noisy = counts[confident] + noise.gaussian((len(confident), counts.shape[1]), self.sigma2)
        labels[confident] = noisy.argmax(axis=1)
        event = compose(RepeatedEvent(test, asked), RepeatedEvent(answer, len(confident)))
        return Answers(passed, labels, None, event, asked)

    def describe(self) -> dict[str, Any]:
        """See `Mechanism.describe`."""
        return {
            "mechanism": self.name,
            "threshold": float(self.threshold),
            "sigma1": float(self.sigma1),
            "sigma2": float(self.sigma2),
        }
