"""Confident-GNMax: answer only where the teachers agree.

Every query pays a cheap noisy test of its largest count; those that pass pay for an answer besides. Under exact
accounting plain GNMax is often as good at the same ε: the test is not free.
"""

import math
from typing import Annotated, Any, Literal, Self

import numpy as np

from terrine.aggregation.findings import charged
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
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.errors import SettingError
from terrine.privacy.accounting.calibrate import calibrate
from terrine.privacy.accounting.events import Event, RepeatedEvent, compose, threshold_test, vote_answer
from terrine.privacy.noise import NoiseSource
from terrine.settings import Field, Unit

_REACH = 2.0
"""Deviations of the test's noise by which a threshold may lie above all votes: one unanimous query in 44 passes."""


class ConfidentGNMax(Mechanism):
    """GNMax with `sigma2` where max_j n_j + N(0, sigma1²) ≥ threshold: μ² = 1/sigma1² a query, 2/sigma2² an answer.

    Papernot et al. 2018, Algorithm 1.
    """

    text = (
        "Confident-GNMax: for each query it was tested, with noise, whether enough teachers agree; where they did, the "
        "class with the largest noisy count was released."
    )
    outcome_dependent = True
    by_parties = True

    mechanism: Literal["confident"] = "confident"
    threshold: Annotated[float, Unit("votes")]
    """T: how many votes the winner must have, noise included."""
    sigma1: Annotated[float, Unit("votes")] = Field(gt=0)
    """Standard deviation of the noise on the test."""
    sigma2: Annotated[float, Unit("votes")] = Field(gt=0)
    """Standard deviation of the noise on every count of an answer."""

    @classmethod
    def calibrated(
        cls, epsilon: float, delta: float, answers: int, *, sigma1: float, tests: int | None = None, **others: Any
    ) -> Self:
        """Return it with the least sigma2 at which so many answers after so many tests cost at most ε at δ.

        tests: None is as many as there are answers. others: the other parameters.
        """
        most = answers if tests is None else tests
        return cls(sigma1=sigma1, sigma2=calibrate(epsilon, delta, answers, tests=most, sigma1=sigma1).sigma, **others)

    @property
    def deviation(self) -> float:
        return self.sigma2

    def cost(self, asked: int, answered: int) -> Event:
        tests = self.charged(asked)
        return self._event(tests, min(answered, tests))

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Mechanism.worst_case`: every query tested and answered, or the run's whole budget."""
        budget = budget_after(spent, epsilon, delta)
        return worst_case_of_tests(self.charged(queries), threshold_test(self.sigma1), vote_answer(self.sigma2), budget)

    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        """See `Mechanism.certain`: as many as could all be tested and answered."""
        both = compose(threshold_test(self.sigma1), vote_answer(self.sigma2))
        budget = budget_after(spent, epsilon, delta)
        return self.reached(affordable_repetitions(both, self.charged(queries), budget), queries)

    def answer(
        self, histograms: HistogramArray, *, epsilon: float, delta: float, noise: NoiseSource, spent: Event = NOTHING
    ) -> Answers:
        """See `Mechanism.answer`. It ends when the next query's test and answer together would not fit."""
        counts = validate_histograms(histograms)
        test, answer = threshold_test(self.sigma1), vote_answer(self.sigma2)
        # Tests are drawn for all queries at once; those past the end of the budget are dropped unseen.
        passed = counts.max(axis=1) + noise.gaussian(len(counts), self.sigma1) >= self.threshold
        budget, query = budget_after(spent, epsilon, delta), {"findings": self.findings, "moved": self.moved}
        asked = affordable_tests(passed, test, answer, budget, **query)
        passed[asked:] = False
        confident = np.flatnonzero(passed)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        noisy = counts[confident] + noise.gaussian((len(confident), counts.shape[1]), self.sigma2)
        labels[confident] = noisy.argmax(axis=1)
        event = self._event(self.charged(asked), int(charged(passed, **query).sum()))
        return Answers(passed, labels, None, event, asked)

    def _event(self, tests: int, answers: int) -> Event:
        """So many tests and answers that one unit can move."""
        return compose(
            RepeatedEvent(threshold_test(self.sigma1), tests), RepeatedEvent(vote_answer(self.sigma2), answers)
        )

    def analysed(self) -> dict[str, Any] | None:
        return {"mechanism": "confident", "threshold": self.threshold, "sigma1": self.sigma1, "sigma": self.sigma2}

    def canaries(self, teachers: int) -> dict[str, int]:
        """See `Mechanism.canaries`. A test that seldom passes is charged next to no answers: the test alone may leak.

        The vote that moves takes the count from below the threshold to it: without noise, it would decide.
        """
        at, below = (math.ceil(self.threshold - lead * self.sigma1) - 1 for lead in (0, 2))
        if not teachers // 2 <= below <= at < teachers:
            raise SettingError(
                f"No histogram of {teachers} teachers over two classes has its largest count two standard deviations "
                f"below the threshold {self.threshold:g}: audit with a smaller sigma1, or other teachers."
            )
        return {"a test that is open": at, "a test that seldom passes": below}

    def check(self, run: Any) -> None:
        """See `Settings.check`: some query must be able to pass."""
        super().check(run)
        voters = run.teachers.voters(run.partition.teachers)
        # Papers print thresholds above all votes, which the test's noise passes where teachers agree.
        if self.threshold > voters + _REACH * self.sigma1:
            of = "" if voters == run.partition.teachers else f" in {voters} groups that vote"
            raise ValueError(
                f"aggregation.threshold={self.threshold:g} is above partition.teachers={run.partition.teachers}{of} by "
                f"more than {_REACH:g} sigma1: hardly any query could pass. Lower the threshold or use more teachers"
            )
