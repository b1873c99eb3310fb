"""Mechanisms with Gaussian noise: the Gaussian histogram, and those of Papernot et al. 2018.

- GNMax (section 4.1) releases the class with the most votes after noise.
- Confident-GNMax (Algorithm 1) answers only if a noisy test shows that enough teachers agree.
- Interactive-GNMax (Algorithm 2) is Confident-GNMax in round one. A student learns from its labels and scores the later
  queries (`terrine.aggregation.adaptive_queries`). A noisy test compares votes and scores: if they differ, the teachers
  answer; otherwise a confident label of the student is confirmed at no further cost.

>>> GNMax(sigma=40.0).worst_case(286, epsilon=2.0, delta=1e-5)
RepeatedEvent(event=GaussianEvent(sensitivity=1.4142135623730951, sigma=40.0), count=...)
"""

import math
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import PrivateAttr

from terrine.aggregation.mechanism import (
    NOTHING,
    UNANSWERED,
    Answers,
    Mechanism,
    affordable_repetitions,
    affordable_tests,
    budget_after,
    worst_case_of_tests,
)
from terrine.aggregation.votes import HistogramArray, charged, validate_histograms
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.calibrate import calibrate
from terrine.privacy.accounting.events import Event, RepeatedEvent, compose, threshold_test, vote_answer
from terrine.privacy.accounting.gaussian import GaussianFilter
from terrine.privacy.noise import NoiseSource
from terrine.settings import Automatic, Field, Unit

DEFAULT_SIGMA = 27.0
"""Noise of the default settings, in votes: about 1,000 answers at ε = 8. The placeholder for `auto` (100) only has to
be affordable under small budgets."""


class GaussianHistogram(Mechanism):
    """Histogram n + N(0, sigma² I) of every query, with a fixed cost of μ² = 2/sigma² per answer."""

    text = (
        "Gaussian histogram: for each query the teachers' votes were counted by class, Gaussian noise was added to "
        "every count, and the noisy counts were released."
    )
    reveals: ClassVar[Literal["argmax", "histogram"]] = "histogram"
    by_parties = True

    mechanism: Literal["histogram"] = "histogram"
    sigma: Annotated[float, Unit("votes"), Automatic(100.0)] = Field(gt=0)
    """Standard deviation of the noise on each count."""

    @classmethod
    def calibrated(cls, epsilon: float, delta: float, answers: int) -> Self:
        """Return the mechanism with the least noise for which `answers` answers cost at most ε at δ.

        >>> GaussianHistogram.calibrated(epsilon=2, delta=1e-5, answers=5000).sigma
        199.381244...
        """
        return cls(sigma=calibrate(epsilon, delta, answers).sigma)

    @property
    def deviation(self) -> float:
        return self.sigma

    def cost(self, queried: int, answered: int) -> Event:
        """See `Mechanism.cost`: every query asked is answered."""
        return RepeatedEvent(vote_answer(self.sigma), self.charged(queried))

    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        budget = budget_after(spent, epsilon, delta)
        return self.reached(affordable_repetitions(vote_answer(self.sigma), self.charged(queries), budget), queries)

    def answer(
        self, histograms: HistogramArray, *, epsilon: float, delta: float, noise: NoiseSource, spent: Event = NOTHING
    ) -> Answers:
        """See `Mechanism.answer`. The labels are the argmax of the noisy histograms, which GNMax does not release."""
        counts = validate_histograms(histograms)
        queried = self.certain(len(counts), epsilon, delta, spent)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        noisy = np.full(counts.shape, np.nan)
        noisy[:queried] = counts[:queried] + noise.gaussian((queried, counts.shape[1]), self.sigma)
        labels[:queried] = noisy[:queried].argmax(axis=1)
        released = noisy if self.reveals == "histogram" else None
        return Answers(labels != UNANSWERED, labels, released, self.cost(queried, queried), queried)


class GNMax(GaussianHistogram):
    """argmax_j (n_j + N(0, sigma²)), with a fixed cost of μ² = 2/sigma² per answer (Papernot et al. 2018, 4.1)."""

    text = (
        "GNMax: for each query the teachers' votes were counted by class, Gaussian noise was added to every count, and "
        "the class with the largest noisy count was released."
    )
    reveals = "argmax"

    mechanism: Literal["gnmax"] = "gnmax"  # type: ignore[assignment]
    # Not automatic: `terrine.planning` models noisy counts, not labels.
    sigma: Annotated[float, Unit("votes")] = Field(gt=0)
    """Standard deviation of the noise on each count."""


_REACH = 2.0
"""Number of standard deviations of test noise by which a threshold may exceed all votes: 1 in 44 unanimous queries
passes."""


class ConfidentGNMax(Mechanism):
    """GNMax with `sigma2` if max_j n_j + N(0, sigma1²) ≥ threshold (Papernot et al. 2018, Algorithm 1).

    The cost μ² is 1/sigma1² per query and 2/sigma2² per answer.
    """

    text = (
        "Confident-GNMax: for each query it was tested, with noise, whether enough teachers agree; where they did, the "
        "class with the largest noisy count was released."
    )
    outcome_dependent = True
    by_parties = True

    mechanism: Literal["confident"] = "confident"
    threshold: Annotated[float, Unit("votes")]
    """T: minimum number of votes for the winner, including noise."""
    sigma1: Annotated[float, Unit("votes")] = Field(gt=0)
    """Standard deviation of the noise in the threshold test."""
    sigma2: Annotated[float, Unit("votes")] = Field(gt=0)
    """Standard deviation of the noise on each count of an answer."""

    @classmethod
    def calibrated(
        cls, epsilon: float, delta: float, answers: int, *, sigma1: float, tests: int | None = None, **others: Any
    ) -> Self:
        """Return the mechanism with the least sigma2 for which these answers and tests cost at most ε at δ.

        By default every test leads to an answer. `others` are the remaining parameters of the mechanism.
        """
        most = answers if tests is None else tests
        return cls(sigma1=sigma1, sigma2=calibrate(epsilon, delta, answers, tests=most, sigma1=sigma1).sigma, **others)

    @property
    def deviation(self) -> float:
        return self.sigma2

    def cost(self, queried: int, answered: int) -> Event:
        tests = self.charged(queried)
        return self._event(tests, min(answered, tests))

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Mechanism.worst_case`: all queries tested and answered, or the run's whole budget."""
        budget = budget_after(spent, epsilon, delta)
        return worst_case_of_tests(self.charged(queries), threshold_test(self.sigma1), vote_answer(self.sigma2), budget)

    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        """See `Mechanism.certain`: every query is tested and answered."""
        both = compose(threshold_test(self.sigma1), vote_answer(self.sigma2))
        budget = budget_after(spent, epsilon, delta)
        return self.reached(affordable_repetitions(both, self.charged(queries), budget), queries)

    def answer(
        self, histograms: HistogramArray, *, epsilon: float, delta: float, noise: NoiseSource, spent: Event = NOTHING
    ) -> Answers:
        """See `Mechanism.answer`. It ends when the budget does not cover the next query's test and answer together."""
        counts = validate_histograms(histograms)
        budget = budget_after(spent, epsilon, delta)
        return self._tested(counts, counts.max(axis=1), self.threshold, budget, noise)

    def _tested(
        self, counts: HistogramArray, tested: NDArray[Any], least: float, budget: GaussianFilter, noise: NoiseSource
    ) -> Answers:
        """Answer the queries for which `tested` [queries] plus noise is at least `least`."""
        test, answer = threshold_test(self.sigma1), vote_answer(self.sigma2)
        # All tests are drawn at once; those past the end of the budget are discarded.
        passed = tested + noise.gaussian(len(counts), self.sigma1) >= least
        query = {"findings": self.findings, "moved": self.moved}
        queried = affordable_tests(passed, test, answer, budget, **query)
        passed[queried:] = False
        confident = np.flatnonzero(passed)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        noisy = counts[confident] + noise.gaussian((len(confident), counts.shape[1]), self.sigma2)
        labels[confident] = noisy.argmax(axis=1)
        event = self._event(self.charged(queried), int(charged(passed, **query).sum()))
        return Answers(passed, labels, None, event, queried)

    def _event(self, tests: int, answers: int) -> Event:
        """Return the cost of those tests and answers that one unit can change."""
        return compose(
            RepeatedEvent(threshold_test(self.sigma1), tests), RepeatedEvent(vote_answer(self.sigma2), answers)
        )

    def canaries(self, teachers: int) -> dict[str, int]:
        """See `Mechanism.canaries`: a test that often passes, and one that seldom passes and is charged few answers.

        The moved vote raises the count to the threshold, so without noise it would decide the test.
        """
        at, below = (math.ceil(self.threshold - lead * self.sigma1) - 1 for lead in (0, 2))
        if not teachers // 2 <= below <= at < teachers:
            raise SettingError(
                f"No histogram of {teachers} teachers over two classes has its largest count two standard deviations "
                f"below the threshold {self.threshold:g}: audit with a smaller sigma1, or other teachers."
            )
        return {"a test that is open": at, "a test that seldom passes": below}

    def check(self, run: Any) -> None:
        """Raise ValueError if hardly any query could pass the test."""
        super().check(run)
        voters = run.teachers.voters(run.partition.teachers)
        # Papers use thresholds above all votes, which the test's noise can exceed if teachers agree.
        if self.threshold > voters + _REACH * self.sigma1:
            of = "" if voters == run.partition.teachers else f" in {voters} groups that vote"
            raise ValueError(
                f"aggregation.threshold={self.threshold:g} is above partition.teachers={run.partition.teachers}{of} by "
                f"more than {_REACH:g} sigma1: hardly any query could pass. Lower the threshold or use more teachers"
            )


# The student's expected votes N·p_j are rounded to multiples of this, so that votes minus expected votes are on the
# noise's lattice for every sigma.
_GRID = 2.0**-10


class InteractiveGNMax(ConfidentGNMax):
    """Confident-GNMax, or given a student's scores p, GNMax if max_j (n_j − N·p_j) + N(0, sigma1²) ≥ surprise.

    If the test fails, argmax p is the label if p is confident. A moved vote changes the largest difference by at most
    one, so in every round the test costs μ² = 1/sigma1² and an answer 2/sigma2² (Papernot et al. 2018, Algorithm 2).
    """

    text = (
        "Interactive-GNMax: in the first round it was tested, with noise, whether enough teachers agree, in later "
        "rounds whether they differ from a student of the earlier answers; where that was so, the class with the "
        "largest noisy count was released, and elsewhere the student's own label if it was sure of it."
    )
    informed = True
    by_parties = False

    mechanism: Literal["interactive"] = "interactive"  # type: ignore[assignment]
    surprise: Annotated[float, Unit("votes")]
    """T of later rounds: minimum number of votes by which the teachers differ from the student, including noise."""
    confidence: float = Field(ge=0, le=1)
    """γ: probability above which the student's own label is confirmed at no cost."""
    _scores: NDArray[np.float64] | None = PrivateAttr(None)

    def informed_by(self, probabilities: ArrayLike) -> "InteractiveGNMax":
        """See `Mechanism.informed_by`. Probabilities must depend only on released labels and public images.

        Raises:
            InputError: A row does not sum to one, or contains negative numbers.
        """
        scores = np.asarray(probabilities, dtype=np.float64)
        if scores.ndim != 2 or not np.isfinite(scores).all() or (scores < 0).any():
            raise InputError(f"A student's probabilities are finite, ≥ 0 and [queries, classes], got {scores.shape}.")
        if not np.allclose(scores.sum(axis=1), 1, atol=1e-3):
            raise InputError("A student's probabilities sum to one for every query: pass them after the softmax.")
        informed = self.model_copy()
        informed._scores = scores
        return informed

    def answer(
        self, histograms: HistogramArray, *, epsilon: float, delta: float, noise: NoiseSource, spent: Event = NOTHING
    ) -> Answers:
        counts, scores = validate_histograms(histograms), self._scores
        if scores is None:
            answers = super().answer(counts, epsilon=epsilon, delta=delta, noise=noise, spent=spent)
            return replace(answers, reinforced=np.zeros(len(counts), dtype=np.bool_))
        if scores.shape != counts.shape:
            raise InputError(
                f"The student's probabilities {list(scores.shape)} and the histograms {list(counts.shape)} must have "
                "the same queries and classes."
            )
        expected = np.rint(counts[:1].sum() * scores / _GRID) * _GRID
        difference = (counts - expected).max(axis=1)
        answers = self._tested(counts, difference, self.surprise, budget_after(spent, epsilon, delta), noise)
        reinforced = ~answers.answered & (scores.max(axis=1) > self.confidence)
        reinforced[answers.queried :] = False
        labels = np.where(reinforced, scores.argmax(axis=1), answers.labels)
        return replace(answers, answered=answers.answered | reinforced, labels=labels, reinforced=reinforced)

    def canaries(self, teachers: int) -> dict[str, int]:
        return Mechanism.canaries(self, teachers)

    def check(self, run: Any) -> None:
        """Raise ValueError if no round compares votes with a student."""
        super().check(run)
        if run.queries.rounds < 2:
            raise ValueError(
                f"queries.rounds={run.queries.rounds} is too few: aggregation.mechanism=interactive compares a "
                "student of the first round with the teachers in the later ones. Set queries.rounds to 2 or more"
            )
