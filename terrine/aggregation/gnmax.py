"""GNMax: the class with the most votes after Gaussian noise on every count (Papernot et al. 2018, section 4.1).

>>> GNMax(sigma=40.0).worst_case(286, epsilon=2.0, delta=1e-5)
RepeatedEvent(event=GaussianEvent(sensitivity=1.4142135623730951, sigma=40.0), count=...)
"""

from dataclasses import dataclass, replace
from typing import Any

from terrine.aggregation.histogram import GaussianHistogram
from terrine.aggregation.mechanism import NOTHING, Answers, require_positive
from terrine.aggregation.votes import HistogramArray
from terrine.privacy.accounting.events import Event
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

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Mechanism.worst_case`: exactly what will be spent."""
        return GaussianHistogram(self.sigma).worst_case(queries, epsilon, delta, spent)

    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        """See `Mechanism.certain`."""
        return GaussianHistogram(self.sigma).certain(queries, epsilon, delta, spent)

    def answer(
        self,
        histograms: HistogramArray,
        *,
        epsilon: float,
        delta: float,
        noise: NoiseSource,
        spent: Event = NOTHING,
    ) -> Answers:
        """See `Mechanism.answer`. What the Gaussian histogram would release, the counts withheld."""
        answers = GaussianHistogram(self.sigma).answer(
            histograms, epsilon=epsilon, delta=delta, noise=noise, spent=spent
        )
        return replace(answers, histograms=None)

    def describe(self) -> dict[str, Any]:
        """See `Mechanism.describe`."""
        return {"mechanism": self.name, "sigma": float(self.sigma)}
