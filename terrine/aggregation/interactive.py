"""Interactive-GNMax: ask the teachers only where the student is wrong (Papernot et al. 2018, Algorithm 2).

Two rounds with a student between them. Round one is Confident-GNMax; a student learns from its labels and scores the
queries of round two. There a cheap noisy test asks how far the votes are from the student's scores: far, and the
teachers answer; near, and the student's own label is confirmed where it is sure of it, which costs nothing more.

`terrine.aggregation.rounds` leads through the rounds: it gives each what the earlier ones spent, so that together they
stay within one budget.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.aggregation.confident import ConfidentGNMax
from terrine.aggregation.mechanism import (
    NOTHING,
    UNANSWERED,
    Answers,
    affordable_tests,
    budget_after,
    require_positive,
)
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event, RepeatedEvent, compose, threshold_test, vote_answer
from terrine.privacy.noise import NoiseSource

# The student's expected votes N·p_j are rounded to multiples of this, so that votes minus expected votes lie on the
# noise's lattice whatever sigma is.
_GRID = 2.0**-10


@dataclass(frozen=True, eq=False)
class InteractiveGNMax:
    """Confident-GNMax; with a student's scores, GNMax where max_j (n_j − N·p_j) + N(0, sigma1²) ≥ surprise.

    Where the test fails, argmax p is the label if p is confident. A vote moved changes the largest difference by at
    most one, so in either round the test costs μ² = 1/sigma1² and an answer 2/sigma2².

    Attributes:
        threshold: T of round one, in votes.
        sigma1: Standard deviation of the tests' noise, in votes.
        sigma2: Standard deviation of the answers' noise on every count, in votes.
        surprise: T of round two: by how many votes the teachers must differ from the student.
        confidence: γ: what the student's largest probability must exceed to be confirmed.
        probabilities: The student's scores [queries, classes], rows summing to one: in round two. They must come from
            released labels and public images alone.
    """

    threshold: float
    sigma1: float
    sigma2: float
    surprise: float
    confidence: float
    probabilities: ArrayLike | None = None
    name = "interactive"

    def __post_init__(self) -> None:
        require_positive("Interactive-GNMax", sigma1=self.sigma1, sigma2=self.sigma2)
        for name, value in (("threshold", self.threshold), ("surprise", self.surprise)):
            if not np.isfinite(value):
                raise SettingError(f"{name} of Interactive-GNMax is a number of votes, got {value!r}.")
        if not 0 <= self.confidence <= 1:
            raise SettingError(f"confidence of Interactive-GNMax is a probability, got {self.confidence!r}.")
        if self.probabilities is None:
            return
        scores = self._scores
        if scores.ndim != 2 or not np.isfinite(scores).all() or (scores < 0).any():
            raise InputError(f"A student's probabilities are finite, ≥ 0 and [queries, classes], got {scores.shape}.")
        if not np.allclose(scores.sum(axis=1), 1, atol=1e-3):
            raise InputError("A student's probabilities sum to one for every query: pass them after the softmax.")

    @property
    def _scores(self) -> NDArray[np.float64]:
        return np.asarray(self.probabilities, dtype=np.float64)

    @property
    def _first_round(self) -> ConfidentGNMax:
        return ConfidentGNMax(self.threshold, self.sigma1, self.sigma2)

    def informed_by(self, probabilities: ArrayLike) -> "InteractiveGNMax":
        """Round two, with the student's scores [queries, classes] of the queries it will be given."""
        return replace(self, probabilities=probabilities)

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Mechanism.worst_case`: tests and answers cost the same in both rounds."""
        return self._first_round.worst_case(queries, epsilon, delta, spent)

    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        """See `Mechanism.certain`."""
        return self._first_round.certain(queries, epsilon, delta, spent)

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
        if self.probabilities is None:
            answers = self._first_round.answer(counts, epsilon=epsilon, delta=delta, noise=noise, spent=spent)
            return replace(answers, reinforced=np.zeros(len(counts), dtype=np.bool_))
        scores = self._scores
        if scores.shape != counts.shape:
            raise InputError(
                f"The student's probabilities {list(scores.shape)} and the histograms {list(counts.shape)} must be of "
                "the same queries and classes."
            )
        test, answer = threshold_test(self.sigma1), vote_answer(self.sigma2)
        teachers = counts[:1].sum()
        expected = np.rint(teachers * scores / _GRID) * _GRID
        difference = (counts - expected).max(axis=1)
        passed = difference + noise.gaussian(len(counts), self.sigma1) >= self.surprise
        asked = affordable_tests(passed, test, answer, budget_after(spent, epsilon, delta))
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
        description = {
            "mechanism": self.name,
            "threshold": float(self.threshold),
            "sigma1": float(self.sigma1),
            "sigma2": float(self.sigma2),
            "surprise": float(self.surprise),
            "confidence": float(self.confidence),
        }
        if self.probabilities is None:
            return description
        scores = np.ascontiguousarray(self._scores, dtype="<f8")
        return {
            **description,
            "probabilities": hashlib.sha256(repr(scores.shape).encode() + scores.tobytes()).hexdigest(),
        }
