"""Mechanisms that release sums over records and learn a linear head from them, without votes.

They are for linear heads on public features (`terrine.aggregation.records`), and for data that may be summed: in one
process, or in fixed point by parties that can add up numbers. All of a run's budget is spent, by public rules, so the
cost of a release is known before any data are read.

`Moments` is one round: sufficient statistics with noise (Blum et al. 2005; Dwork et al. 2014, "Analyze Gauss"), and
ridge regression from them (Wang 2018, AdaSSP), with public constants only: features are whitened by public images, both
moments have equal noise, and the penalty depends only on the noise.

`Gradients` spends a share of the budget on moments, then releases in each round G = Σ clip(∇ℓ) + noise over all records
(full batch, without sampling) at the weights that the earlier rounds made public (Abadi et al. 2016). Few rounds are
enough, since they start at the ridge head of the moments and continue in their metric
(`terrine.aggregation.gradient_rounds`). All constants were chosen on MNIST and digits, once
(docs/sums.md).
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.gradient_rounds import RoundSchedule, moments_sigma
from terrine.aggregation.mechanism import NOTHING, Aggregation, budget_after
from terrine.aggregation.records import STEP, Floats, Records
from terrine.errors import SettingError
from terrine.privacy.accounting.events import Event
from terrine.privacy.noise import NoiseSource
from terrine.privacy.noised_sum import add_noise
from terrine.settings import Field

ROOM = 1 - 1e-9
"""Of a budget's μ, what may be spent: sums of costs are rounded upwards."""


class Sums(Aggregation):
    """A way to learn a linear head from sums over records with noise.

    Formal guarantee of an implementation: the arrays of `release` are, given the earlier ones, what the mechanisms in
    `event` release about the records, where neighbours differ in one unit: exchanged, added or removed. The event's μ
    is at most the one given.
    """

    reveals: ClassVar[Literal["argmax", "histogram", "sums"]] = "sums"
    by_parties: ClassVar[bool] = True

    @abstractmethod
    def course(self, mu: float) -> RoundSchedule:
        """Return the rounds that cost μ."""

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Aggregation.worst_case`: exactly what will be spent, whatever the queries are."""
        return self.event(mu_left(epsilon, delta, spent))

    def event(self, mu: float) -> Event:
        """What a release costs that may cost μ; no data is looked at."""
        return self.course(mu).event

    def release(self, records: Records, mu: float, noise: NoiseSource) -> dict[str, NDArray[np.float64]]:
        """Return what is released, by name (`RoundSchedule.arrays`), for a budget μ.

        Raises:
            SettingError: a budget so small that noise is drawn on too coarse a lattice.
        """
        course = self.course(mu)
        descent, summed, released = course.descent(records.length), course.summing(records), []
        for number in range(course.passes):
            parts = course.noise(records.length, records.classes, number)
            sums = np.split(summed(descent.question), np.cumsum([count for count, _ in parts])[:-1])
            drawn = [add_noise(part, sigma, noise, STEP) for part, (_, sigma) in zip(sums, parts, strict=True)]
            released.append(np.concatenate(drawn))
            descent.take(released[-1])
        return course.arrays(released, records.length)

    def head(self, released: dict[str, NDArray[Any]], mu: float) -> Floats:
        """Return the head's weights [length, classes] on vectors: a function of what was released."""
        return self.course(mu).ends(released)

    def numbers(self, length: int, classes: int) -> int:
        """How many numbers with noise are released of vectors of this length."""
        course = self.course(1.0)
        return sum(count for number in range(course.passes) for count, _ in course.noise(length, classes, number))

    def check(self, run: Any) -> None:
        super().check(run)
        name, reason = f"aggregation.mechanism={self.mechanism}", None
        if run.transcription is not None:
            reason = "a transcription releases annotations. Set transcription to null"
        elif run.data.name == "table":
            reason = "its features are those of images. Use a mechanism that counts votes"
        elif run.student.kind != "sums":
            reason = (
                f"a student of kind {run.student.kind} learns from answers, not from sums. Leave student.kind out, or "
                "choose a mechanism that counts votes"
            )
        elif run.teachers.averages:
            reason = "no teacher learns anything. Set teachers.kind=linear"
        elif run.queries.rounds > 1:
            reason = "nobody is asked anything. Set queries.rounds=1"
        elif run.student.statistics == "current":
            reason = (
                "under current statistics one record would move the features of its whole batch, and the sum by "
                "far more than it is charged for. Set student.statistics=original"
            )
        if reason:
            raise ValueError(f"{name}: {reason}")


def mu_left(epsilon: float, delta: float, spent: Event = NOTHING) -> float:
    """Return the μ of a run's budget after what was spent. Raises SettingError where nothing is left."""
    left = budget_after(spent, epsilon, delta).mu_squared_left
    if not left > 0:
        raise SettingError("Nothing of the budget is left for sums over records. Raise aggregation.epsilon.")
    return math.sqrt(left) * ROOM


class Moments(Sums):
    """Σ x xᵀ and Σ x yᵀ over all records, with noise: one message of d²/2 + d·classes numbers."""

    text = (
        "Moments: each record's features, as a vector of length 1 at most, were multiplied with themselves and with "
        "the record's label; the products were added up over all records, Gaussian noise was added to the sums, and "
        "the noisy sums were released."
    )

    mechanism: Literal["moments"] = "moments"

    def course(self, mu: float) -> RoundSchedule:
        """See `Sums.course`: one round."""
        return RoundSchedule(moments_sigma(mu), findings=self.findings > 1)


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
    """Number of gradients released."""
    clip: float = Field(0.5, gt=0, le=1)
    """Maximum norm of a record's gradient."""
    learning_rate: float = Field(1.0, gt=0)
    """Step size, relative to the exact least-squares step."""
    share: float = Field(0.2, gt=0, lt=1)
    """Share of the budget, in μ², for the moments that initialise the gradients."""

    def course(self, mu: float) -> RoundSchedule:
        return RoundSchedule(
            moments_sigma(mu * math.sqrt(self.share)),
            self.rounds,
            self.clip,
            self.learning_rate,
            2 * self.clip * math.sqrt(self.rounds / (1 - self.share)) / mu,
            self.findings > 1,
        )
