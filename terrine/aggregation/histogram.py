"""The Gaussian histogram: the noisy counts themselves, at the price of their argmax.

n + N(0, σ²I) costs exactly what its argmax costs, because the argmax is computed from it. So a student may have all of
it: the likelihood of a whole noisy histogram teaches far more than the label that would be left of it.
"""

from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from terrine.aggregation.mechanism import NOTHING, UNANSWERED, Answers, Mechanism, affordable_repetitions, budget_after
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.privacy.accounting.calibrate import calibrate
from terrine.privacy.accounting.events import Event, RepeatedEvent, vote_answer
from terrine.privacy.noise import NoiseSource
from terrine.settings import Automatic, Field, Unit


class GaussianHistogram(Mechanism):
    """n + N(0, sigma² I) for every query: μ² = 2/sigma² an answer, known before any query is asked."""

    text = (
        "Gaussian histogram: for each query the teachers' votes were counted by class, Gaussian noise was added to "
        "every count, and the noisy counts were released."
    )
    reveals: ClassVar[Literal["argmax", "histogram"]] = "histogram"
    by_parties = True

    mechanism: Literal["histogram"] = "histogram"
    sigma: Annotated[float, Unit("votes"), Automatic(100.0)] = Field(gt=0)
    """Standard deviation of the noise on every count."""

    @classmethod
    def calibrated(cls, epsilon: float, delta: float, answers: int) -> Self:
        """Return it with the least noise at which so many answers cost at most ε at δ.

        >>> GaussianHistogram.calibrated(epsilon=2, delta=1e-5, answers=5000).sigma
        199.381244...
        """
        return cls(sigma=calibrate(epsilon, delta, answers).sigma)

    @property
    def deviation(self) -> float:
        return self.sigma

    def cost(self, asked: int, answered: int) -> Event:
        """See `Mechanism.cost`: all that are looked at are answered."""
        return RepeatedEvent(vote_answer(self.sigma), self.charged(asked))

    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        budget = budget_after(spent, epsilon, delta)
        return self.reached(affordable_repetitions(vote_answer(self.sigma), self.charged(queries), budget), queries)

    def answer(
        self, histograms: HistogramArray, *, epsilon: float, delta: float, noise: NoiseSource, spent: Event = NOTHING
    ) -> Answers:
        """See `Mechanism.answer`. The labels are the argmax of the noisy histograms, which GNMax withholds."""
        counts = validate_histograms(histograms)
        asked = self.certain(len(counts), epsilon, delta, spent)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        noisy = np.full(counts.shape, np.nan)
        noisy[:asked] = counts[:asked] + noise.gaussian((asked, counts.shape[1]), self.sigma)
        labels[:asked] = noisy[:asked].argmax(axis=1)
        released = noisy if self.reveals == "histogram" else None
        return Answers(labels != UNANSWERED, labels, released, self.cost(asked, asked), asked)
