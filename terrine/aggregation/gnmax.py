"""GNMax: the class with the most votes after Gaussian noise on every count.

>>> GNMax(sigma=40.0).worst_case(286, epsilon=2.0, delta=1e-5)
RepeatedEvent(event=GaussianEvent(sensitivity=1.4142135623730951, sigma=40.0), count=...)
"""

from dataclasses import replace
from typing import Any, Literal

from terrine.aggregation.histogram import GaussianHistogram
from terrine.aggregation.mechanism import NOTHING, Answers
from terrine.aggregation.votes import HistogramArray
from terrine.privacy.accounting.events import Event
from terrine.privacy.noise import NoiseSource


class GNMax(GaussianHistogram):
    """argmax_j (n_j + N(0, sigma²)): μ² = 2/sigma² an answer, known before any query is asked.

    Papernot et al. 2018, section 4.1.
    """

    text = (
        "GNMax: for each query the teachers' votes were counted by class, Gaussian noise was added to every count, and "
        "the class with the largest noisy count was released."
    )
    reveals = "argmax"

    mechanism: Literal["gnmax"] = "gnmax"  # type: ignore[assignment]

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
        answers = super().answer(histograms, epsilon=epsilon, delta=delta, noise=noise, spent=spent)
        return replace(answers, histograms=None)

    def analysed(self) -> dict[str, Any]:
        """See `Mechanism.analysed`."""
        return self.describe()
