"""GNMax: the class with the most votes after Gaussian noise on every count (Papernot et al. 2018, section 4.1).

>>> GNMax(sigma=40.0).worst_case(286, epsilon=2.0, delta=1e-5)
RepeatedEvent(event=GaussianEvent(sensitivity=1.4142135623730951, sigma=40.0), count=...)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from terrine.aggregation.mechanism import UNANSWERED, Answers, affordable_repetitions, require_positive
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.privacy.events import Event, RepeatedEvent, vote_answer
from terrine.privacy.noise import NoiseSource


@dataclass(frozen=True)
class GNMax:
    """argmax_j (n_j + N(0, sigma²)): μ² = 2/sigma² an answer, known before any query is asked.

    Attributes:
        sigma: Standard deviation of the noise, in votes.
    """

    sigma: float
    name = "gnmax"

    def __post_init__(self) -> None:
        require_positive("GNMax", sigma=self.sigma)

    def worst_case(self, queries: int, epsilon: float, delta: float) -> Event:
        """See `Mechanism.worst_case`: exactly what will be spent."""
        event = vote_answer(self.sigma)
        return RepeatedEvent(event, affordable_repetitions(event, queries, epsilon, delta))

    def answer(self, histograms: HistogramArray, *, epsilon: float, delta: float, noise: NoiseSource) -> Answers:
        """See `Mechanism.answer`."""
        counts = validate_histograms(histograms)
        event = vote_answer(self.sigma)
        asked = affordable_repetitions(event, len(counts), epsilon, delta)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        noisy = counts[:asked] + noise.gaussian((asked, counts.shape[1]), self.sigma)
        labels[:asked] = noisy.argmax(axis=1)
        return Answers(labels != UNANSWERED, labels, None, RepeatedEvent(event, asked), asked)

    def describe(self) -> dict[str, Any]:
        """See `Mechanism.describe`."""
        return {"mechanism": self.name, "sigma": float(self.sigma)}
