"""GNMax: the class with the most votes after Gaussian noise on every count.

>>> GNMax(sigma=40.0).worst_case(286, epsilon=2.0, delta=1e-5)
RepeatedEvent(event=GaussianEvent(sensitivity=1.4142135623730951, sigma=40.0), count=...)
"""

from typing import Annotated, Any, Literal

from terrine.aggregation.histogram import GaussianHistogram
from terrine.settings import Field, Unit


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
    # Not automatic: `terrine.planning` knows what noisy counts say, not what one class says.
    sigma: Annotated[float, Unit("votes")] = Field(gt=0)
    """Standard deviation of the noise on every count."""

    def analysed(self) -> dict[str, Any]:
        return self.describe()
