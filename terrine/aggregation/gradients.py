"""Gradients: moments for a share of the budget, then rounds of noised clipped gradients of a softmax head from there.

Each round releases G = Σ clip(∇ℓ) + noise over all records (full batch: no record is drawn, none has a place in an
order), at the weights that the earlier rounds made public (Abadi et al. 2016, without sampling). Few rounds are enough,
since they start at the ridge head of the moments and go on in their metric (`terrine.aggregation.course`, with what a
record moves). All constants were chosen on MNIST and digits, once (docs/sums.md).
"""

import math
from typing import Literal

from terrine.aggregation.course import Course, sigma_of_moments
from terrine.aggregation.sums import Sums
from terrine.settings import Field


class Gradients(Sums):
    """Rounds of noised clipped gradients over all records, in the metric of their noised moments."""

    text = (
        "Gradients: moments of the records' features (vectors of length 1 at most) were added up over all records and "
        "released with Gaussian noise; then, in each round, every record's gradient of a classifier, limited in "
        "length, was added up over all records, Gaussian noise was added, the noisy sum was released, and the "
        "classifier took a step along it."
    )

    mechanism: Literal["gradients"] = "gradients"
    rounds: int = Field(20, ge=1)
    """Gradients that are released, one after the other."""
    clip: float = Field(0.5, gt=0, le=1)
    """Largest length of a record's gradient."""
    learning_rate: float = Field(1.0, gt=0)
    """Step, in units of the one that least squares would take at once."""
    share: float = Field(0.2, gt=0, lt=1)
    """Of the budget, in μ², what goes to the moments that gradients start from."""

    def course(self, mu: float) -> Course:
        return Course(
            sigma_of_moments(mu * math.sqrt(self.share)),
            self.rounds,
            self.clip,
            self.learning_rate,
            2 * self.clip * math.sqrt(self.rounds / (1 - self.share)) / mu,
            self.findings > 1,
        )
