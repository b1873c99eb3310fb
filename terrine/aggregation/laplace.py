"""LNMax: the class with the most votes after Laplace noise on every count (Papernot et al. 2017, section 2.2).

Kept for parity with the first PATE paper. GNMax answers more queries at the same ε.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

from terrine.aggregation.mechanism import NOTHING, UNANSWERED, Answers, require_positive
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.errors import SettingError
from terrine.privacy.accounting.events import Event, LaplaceEvent, RepeatedEvent, compose
from terrine.privacy.accounting.renyi import epsilon_of_event
from terrine.privacy.noise import NoiseSource


@dataclass(frozen=True)
class LNMax:
    """argmax_j (n_j + Lap(scale)): pure ε = 2/scale an answer, composed by the best data-independent bound.

    Attributes:
        scale: Scale of the Laplace noise, in votes: 1/γ in the paper.
    """

    scale: float
    name = "lnmax"

    def __post_init__(self) -> None:
        require_positive("LNMax", scale=self.scale)

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Mechanism.worst_case`: exactly what will be spent."""
        return self._repeated(self.certain(queries, epsilon, delta, spent))

    def answer(
        self,
        histograms: HistogramArray,
        *,
        epsilon: float,
        delta: float,
        noise: NoiseSource,
        spent: Event = NOTHING,
    ) -> Answers:
        """See `Mechanism.answer`."""
        counts = validate_histograms(histograms)
        asked = self.certain(len(counts), epsilon, delta, spent)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        labels[:asked] = (counts[:asked] + noise.laplace((asked, counts.shape[1]), self.scale)).argmax(axis=1)
        return Answers(labels != UNANSWERED, labels, None, self._repeated(asked), asked)

    def describe(self) -> dict[str, Any]:
        """See `Mechanism.describe`."""
        return {"mechanism": self.name, "scale": float(self.scale)}

    def _repeated(self, count: int) -> RepeatedEvent:
        # A vote moved changes two counts by one each: two in L1 norm.
        return RepeatedEvent(LaplaceEvent(sensitivity=2.0, scale=self.scale), count)

    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        """See `Mechanism.certain`."""
        if not 0 < epsilon < math.inf:
            raise SettingError(f"A budget needs a finite epsilon greater than 0, got {epsilon!r}.")
        # ε grows with the count, so its largest affordable value is found by halving.
        return bisect_right(
            range(1, queries + 1),
            epsilon,
            key=lambda count: epsilon_of_event(compose(spent, self._repeated(count)), delta),
        )
