"""Interactive-GNMax: ask the teachers only where the student is wrong (Papernot et al. 2018, Algorithm 2).

Two rounds with a student between them. Round one is Confident-GNMax; a student learns from its labels and scores the
queries of round two. There a cheap noisy test asks how far the votes are from the student's scores: far, and the
teachers answer; near, and the student's own label is confirmed where it is sure of it, which costs nothing more.

Both rounds compose: round two is given the event of round one and stops before the two together pass the budget.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.aggregation.mechanism import (
    UNANSWERED,
    Answers,
    affordable_tests,
    require_positive,
    worst_case_of_tests,
)
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.errors import InputError, SettingError
from terrine.privacy.events import Event, RepeatedEvent, compose, threshold_test, to_json, vote_answer
from terrine.privacy.gaussian import GaussianFilter, mu_squared
from terrine.privacy.noise import NoiseSource

# The student's expected votes N·p_j are rounded to multiples of this, so that votes minus expected votes lie on the
# noise's lattice whatever sigma is.
_GRID = 2.0**-10


@dataclass(frozen=True, eq=False)
class InteractiveGNMax:
    """GNMax with `sigma2` where max_j (n_j − N·p_j) + N(0, sigma1²) ≥ threshold; else argmax p where it is confident.

    A vote moved changes the largest difference by at most one, so the test costs μ² = 1/sigma1², an answer 2/sigma2².

    Attributes:
        threshold: T, in votes.
        sigma1: Standard deviation of the test's noise, in votes.
        sigma2: Standard deviation of the answer's noise on every count, in votes.
        confidence: γ: what the student's largest probability must exceed to be confirmed.
        probabilities: The student's scores [queries, classes], rows summing to one. They must come from released
            labels and public images alone.
        spent: What round one cost; the budget of `answer` is for both rounds.
    """

    threshold: float
    sigma1: float
    sigma2: float
    confidence: float
    probabilities: ArrayLike
    spent: Event = field(default_factory=compose)
    name = "interactive"

    def __post_init__(self) -> None:
        require_positive("Interactive-GNMax", sigma1=self.sigma1, sigma2=self.sigma2)
        if not np.isfinite(self.threshold):
            raise SettingError(f"threshold of Interactive-GNMax is a number of votes, got {self.threshold!r}.")
        if not 0 <= self.confidence <= 1:
            raise SettingError(f"confidence of Interactive-GNMax is a probability, got {self.confidence!r}.")
        scores = self._scores
        if scores.ndim != 2 or not np.isfinite(scores).all() or (scores < 0).any():
            raise InputError(f"A student's probabilities are finite, ≥ 0 and [queries, classes], got {scores.shape}.")
        if not np.allclose(scores.sum(axis=1), 1, atol=1e-3):
            raise InputError("A student's probabilities sum to one for every query: pass them after the softmax.")

    @property
    def _scores(self) -> NDArray[np.float64]:
        return np.asarray(self.probabilities, dtype=np.float64)

    def worst_case(self, queries: int, epsilon: float, delta: float) -> Event:
        """See `Mechanism.worst_case`: what round two can cost besides what round one did."""
        budget = GaussianFilter(epsilon, delta, mu_squared_spent=mu_squared(self.spent))
        return worst_case_of_tests(queries, threshold_test(self.sigma1), vote_answer(self.sigma2), budget)

    def answer(self, histograms: HistogramArray, *, epsilon: float, delta: float, noise: NoiseSource) -> Answers:
        """See `Mechanism.answer`. The event is round two's alone; `epsilon` is the budget of both rounds."""
        counts = validate_histograms(histograms)
        scores = self._scores
        if scores.shape != counts.shape:
            raise InputError(
                f"The student's probabilities {list(scores.shape)} and the histograms {list(counts.shape)} must be of "
                "the same queries and classes."
            )
        test, answer = threshold_test(self.sigma1), vote_answer(self.sigma2)
        teachers = counts[:1].sum()
        expected = np.rint(teachers * scores / _GRID) * _GRID
        surprise = (counts - expected).max(axis=1)
        passed = surprise + noise.gaussian(len(counts), self.sigma1) >= self.threshold
        budget = GaussianFilter(epsilon, delta, mu_squared_spent=mu_squared(self.spent))
        asked = affordable_tests(passed, test, answer, budget)
        passed[asked:] = False
        surprising = np.flatnonzero(passed)
        reinforced = ~passed & (scores.max(axis=1) > self.confidence)
        reinforced[asked:] = False
        labels = np.where(reinforced, scores.argmax(axis=1), UNANSWERED).astype(np.int64)
        noisy = counts[surprising] + noise.gaussian((len(surprising), counts.shape[1]), self.sigma2)
        labels[surprising] = noisy.argmax(axis=1)
        event = compose(RepeatedEvent(test, asked), RepeatedEvent(answer, len(surprising)))
        return Answers(passed | reinforced, labels, None, event, asked, reinforced)

    def describe(self) -> dict[str, Any]:
        """See `Mechanism.describe`; the probabilities by their SHA-256."""
        scores = np.ascontiguousarray(self._scores, dtype="<f8")
        return {
            "mechanism": self.name,
            "threshold": float(self.threshold),
            "sigma1": float(self.sigma1),
            "sigma2": float(self.sigma2),
            "confidence": float(self.confidence),
            "probabilities": hashlib.sha256(repr(scores.shape).encode() + scores.tobytes()).hexdigest(),
            "spent": to_json(self.spent),
        }
