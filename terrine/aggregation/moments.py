"""Moments: one round, in which records add up their second moments, and their vectors by label; the head is ridge.

Sufficient statistics with noise are as old as differential privacy (Blum et al. 2005; Dwork et al. 2014, "Analyze
Gauss"), and so is ridge from them (Wang 2018, AdaSSP). Here all constants are public: the features are
whitened by public images, both moments have equal noise, and the penalty hangs on the noise alone.
"""

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.records import Floats, Records
from terrine.aggregation.sums import Sums, event_of_moments, noised_moments, ridge
from terrine.privacy.accounting.events import Event
from terrine.privacy.noise import NoiseSource


class Moments(Sums):
    """Σ x xᵀ and Σ x yᵀ over all records, with noise: one message of d²/2 + d·classes numbers."""

    text = (
        "Moments: each record's features, as a vector of length 1 at most, were multiplied with themselves and with "
        "the record's label; the products were added up over all records, Gaussian noise was added to the sums, and "
        "the noisy sums were released."
    )

    by_parties: ClassVar[bool] = True

    mechanism: Literal["moments"] = "moments"

    def event(self, mu: float) -> Event:
        """See `Sums.event`."""
        return event_of_moments(mu)

    def release(self, records: Records, mu: float, noise: NoiseSource) -> dict[str, NDArray[np.float64]]:
        """See `Sums.release`: `second` [length, length] and `labels` [length, classes]."""
        second, labels = noised_moments(records, mu, noise)
        return {"second": second, "labels": labels}

    def head(self, released: dict[str, NDArray[Any]], mu: float) -> Floats:
        """See `Sums.head`: ridge."""
        return ridge(released["second"], released["labels"], mu)

    def numbers(self, length: int, classes: int) -> int:
        """See `Sums.numbers`."""
        return length * (length + 1) // 2 + length * classes
