"""Interactive-GNMax: ask the teachers only where the student is wrong.

Two rounds with a student between them. Round one is Confident-GNMax; a student learns from its labels and scores the
queries of round two. There a cheap noisy test asks how far the votes are from the student's scores: far, and the
teachers answer; near, and the student's own label is confirmed where it is sure of it, which costs nothing more.

`terrine.aggregation.rounds` leads through the rounds: it gives each what the earlier ones spent, so that together they
stay within one budget.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import PrivateAttr

from terrine.aggregation.confident import ConfidentGNMax
from terrine.aggregation.mechanism import NOTHING, UNANSWERED, Answers, Mechanism, affordable_tests, budget_after
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.errors import InputError
from terrine.privacy.accounting.events import Event, threshold_test, vote_answer
from terrine.privacy.noise import NoiseSource
from terrine.settings import Field, Unit

# The student's expected votes N·p_j are rounded to multiples of this, so that votes minus expected votes lie on the
# noise's lattice whatever sigma is.
_GRID = 2.0**-10


class InteractiveGNMax(ConfidentGNMax):
    """Confident-GNMax; with a student's scores, GNMax where max_j (n_j − N·p_j) + N(0, sigma1²) ≥ surprise.

    Where the test fails, argmax p is the label if p is confident. A vote moved changes the largest difference by at
    most one, so in either round the test costs μ² = 1/sigma1² and an answer 2/sigma2². Papernot et al. 2018,
    Algorithm 2.
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
    """T of later rounds: by how many votes the teachers must differ from the student, noise included."""
    confidence: float = Field(ge=0, le=1)
    """γ: what the student's largest probability must exceed for its own label to be confirmed, at no cost."""
    _scores: NDArray[np.float64] | None = PrivateAttr(None)

    def informed_by(self, probabilities: ArrayLike) -> "InteractiveGNMax":
        """See `Mechanism.informed_by`.

        Args:
            probabilities: [queries, classes], rows summing to one. They must come from released labels and public
                images alone.

        Raises:
            InputError: numbers that are no probabilities.
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
        return Answers(passed | reinforced, labels, None, self.cost(asked, len(surprising)), asked, reinforced)

    def analysed(self) -> None:
        """See `Mechanism.analysed`: there is none of later rounds."""
        return None

    def canaries(self, teachers: int) -> dict[str, int]:
        return Mechanism.canaries(self, teachers)

    def check(self, run: Any) -> None:
        """See `Settings.check`: there must be a round to compare a student in."""
        super().check(run)
        if run.queries.rounds < 2:
            raise ValueError(
                f"queries.rounds={run.queries.rounds} is too few: aggregation.mechanism=interactive compares a "
                "student of the first round with the teachers in the later ones. Set queries.rounds to 2 or more"
            )
