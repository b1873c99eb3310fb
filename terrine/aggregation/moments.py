"""Moments: one round, in which records add up their second moments, and their vectors by label; the head is ridge.

Sufficient statistics with noise are as old as differential privacy (Blum et al. 2005; Dwork et al. 2014, "Analyze
Gauss"), and so is ridge from them (Wang 2018, AdaSSP). Here all constants are public: the features are
whitened by public images, both moments have equal noise, and the penalty hangs on the noise alone.
"""

from typing import Literal

from terrine.aggregation.course import Course, sigma_of_moments
from terrine.aggregation.sums import Sums


class Moments(Sums):
    """Σ x xᵀ and Σ x yᵀ over all records, with noise: one message of d²/2 + d·classes numbers."""

    text = (
        "Moments: each record's features, as a vector of length 1 at most, were multiplied with themselves and with "
        "the record's label; the products were added up over all records, Gaussian noise was added to the sums, and "
        "the noisy sums were released."
    )

    mechanism: Literal["moments"] = "moments"

    def course(self, mu: float) -> Course:
        """See `Sums.course`: one round."""
        return Course(sigma_of_moments(mu), findings=self.findings > 1)
