"""The Gaussian histogram: the noisy counts themselves, at the price of their argmax.

n + N(0, σ²I) costs exactly what its argmax costs, because the argmax is computed from it. So a student may have all of
it: the likelihood of a whole noisy histogram teaches far more than the label that would be left of it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from terrine.aggregation.mechanism import (
    NOTHING,
    UNANSWERED,
    Answers,
    affordable_repetitions,
    budget_after,
    require_positive,
)
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.privacy.accounting.events import Event, RepeatedEvent, vote_answer
from terrine.privacy.noise import NoiseSource


@dataclass(frozen=True)
class GaussianHistogram:
    """n + N(0, sigma² I) for every query: μ² = 2/sigma² an answer, known before any query is asked.

    Attributes:
        sigma: Standard deviation of the noise, in votes.
    """

    sigma: float
    name = "histogram"

    def __post_init__(self) -> None:
        require_positive("the Gaussian histogram", sigma=self.sigma)

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Mechanism.worst_case`: exactly what will be spent."""
        return RepeatedEvent(vote_answer(self.sigma), self.certain(queries, epsilon, delta, spent))

    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        """See `Mechanism.certain`."""
        return affordable_repetitions(vote_answer(self.sigma), queries, budget_after(spent, epsilon, delta))

    def answer(
        self,
        histograms: HistogramArray,
        *,
        epsilon: float,
        delta: float,
        noise: NoiseSource,
        spent: Event = NOTHING,
    ) -> Answers:
        """See `Mechanism.answer`. The labels are the argmax of the noisy histograms."""
        counts = validate_histograms(histograms)
        asked = self.certain(len(counts), epsilon, delta, spent)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        noisy = np.full(counts.shape, np.nan)
        noisy[:asked] = counts[:asked] + noise.gaussian((asked, counts.shape[1]), self.sigma)
        labels[:asked] = noisy[:asked].argmax(axis=1)
        return Answers(labels != UNANSWERED, labels, noisy, RepeatedEvent(vote_answer(self.sigma), asked), asked)

    def describe(self) -> dict[str, Any]:
        """See `Mechanism.describe`."""
        return {"mechanism": self.name, "sigma": float(self.sigma)}
