"""LNMax: the class with the most votes after Laplace noise on every count.

LNMax reproduces the first PATE paper. GNMax answers more queries at the same ε.
"""

import math
from bisect import bisect_right
from typing import Annotated, Literal, Self

import numpy as np

from terrine.aggregation.mechanism import NOTHING, UNANSWERED, Answers, Mechanism
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.errors import SettingError
from terrine.privacy.accounting.events import Event, compose, laplace_answers
from terrine.privacy.accounting.pricing import claimed_by_moments, price
from terrine.privacy.noise import NoiseSource
from terrine.settings import Field, Unit

_CLOSE = 1 + 1e-4


class LNMax(Mechanism):
    """argmax_j (n_j + Lap(scale)): pure ε = 2/scale per answer, composed with the best data-independent bound.

    Papernot et al. 2017, section 2.2; `scale` is 1/γ there.
    """

    text = (
        "LNMax: for each query the teachers' votes were counted by class, Laplace noise was added to every count, and "
        "the class with the largest noisy count was released."
    )
    gaussian = False

    mechanism: Literal["lnmax"] = "lnmax"
    scale: Annotated[float, Unit("votes")] = Field(gt=0)
    """Scale of the Laplace noise on each count."""

    @classmethod
    def calibrated(cls, epsilon: float, delta: float, answers: int) -> Self:
        """Return the mechanism with the least noise (to 0.01 %) for which `answers` answers cost at most ε at δ."""
        if not 0 < epsilon < math.inf or answers < 1:
            raise SettingError(f"A finite epsilon > 0 and at least one answer are needed, not {epsilon}, {answers}.")
        least, enough = 0.0, 2.0 * answers / epsilon  # the sum of pure ε
        while enough > least * _CLOSE:
            middle = (least + enough) / 2
            fits = price(cls(scale=middle).cost(answers, answers), delta) <= epsilon
            least, enough = (least, middle) if fits else (middle, enough)
        return cls(scale=enough)

    @property
    def deviation(self) -> float:
        return math.sqrt(2) * self.scale

    def cost(self, queried: int, answered: int) -> Event:
        return laplace_answers(self.scale, self.charged(queried))

    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        if not 0 < epsilon < math.inf:
            raise SettingError(f"A budget needs a finite epsilon greater than 0, got {epsilon!r}.")
        # ε grows with the count, so bisection finds the largest affordable one.
        return bisect_right(
            range(1, queries + 1),
            epsilon,
            key=lambda count: price(compose(spent, self.cost(count, count)), delta),
        )

    def answer(
        self, histograms: HistogramArray, *, epsilon: float, delta: float, noise: NoiseSource, spent: Event = NOTHING
    ) -> Answers:
        counts = validate_histograms(histograms)
        queried = self.certain(len(counts), epsilon, delta, spent)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        labels[:queried] = (counts[:queried] + noise.laplace((queried, counts.shape[1]), self.scale)).argmax(axis=1)
        return Answers(labels != UNANSWERED, labels, None, self.cost(queried, queried), queried)

    def claimed(self, queried: int, answered: int, delta: float) -> float:
        """See `Mechanism.claimed`: the paper's figure, by the moments accountant."""
        return claimed_by_moments(1 / self.scale, queried, delta)

    def canaries(self, teachers: int) -> dict[str, int]:
        """See `Mechanism.canaries`. Laplace noise leaks most if the loser seldom wins."""
        gap = min(teachers - 2, max(2, round(2 * self.scale)))
        return {**super().canaries(teachers), "a clear lead": (teachers + gap) // 2}
