"""Mechanisms that release sums over records and learn a linear head from them, without votes.

These mechanisms are for linear heads on public features (`terrine.aggregation.records`), in one process or in fixed
point among parties. Releases of sums spend the run's whole budget by public rules, so the cost is known before any data
are read.

`Moments` has one round: sufficient statistics with noise (Blum et al. 2005; Dwork et al. 2014, "Analyze Gauss"), and
ridge regression from them (Wang 2018, AdaSSP) with public constants: features are whitened by public images, both
moments have equal noise, and the penalty depends only on the noise.

`Gradients` spends a share of the budget on moments, then releases in each round G = Σ clip(∇ℓ) + noise over all records
(full batch, without sampling) at the weights that earlier rounds made public (Abadi et al. 2016). Few rounds suffice,
since they start at the moments' ridge head and use the metric of the moments (`terrine.aggregation.gradient_rounds`).
All constants were chosen once, on MNIST and digits (docs/sums.md).
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
from terrine.privacy.noised_sum import add_noise, common_step
from terrine.settings import Field

ROOM = 1 - 1e-9
"""Share of a budget's μ that is spent: slightly below 1, since sums of costs are rounded up."""


class Sums(Aggregation):
    """A way to learn a linear head from sums over records with noise.

    Formal guarantee of an implementation: given the earlier ones, the arrays of `release` are the releases of the
    mechanisms in `event` about the records, for neighbours that differ in one unit: replaced, added or removed. The μ
    of the event is at most the given μ.
    """

    reveals: ClassVar[Literal["argmax", "histogram", "sums"]] = "sums"
    by_parties: ClassVar[bool] = True

    @abstractmethod
    def schedule(self, mu: float) -> RoundSchedule:
        """Return the schedule of rounds whose total cost is μ."""

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Aggregation.worst_case`: exactly the cost, for all queries.

        Raises:
            SettingError: The budget is so small that the noise lattice would be too coarse.
        """
        mu = mu_left(epsilon, delta, spent)
        schedule = self.schedule(mu)
        for _, sigma in (part for number in range(schedule.passes) for part in schedule.noise(1, 1, number)):
            common_step(sigma, STEP)
        return self.event(mu)

    def event(self, mu: float) -> Event:
        """Return the cost of a release with budget μ, without access to data."""
        return self.schedule(mu).event

    def release(self, records: Records, mu: float, noise: NoiseSource) -> dict[str, NDArray[np.float64]]:
        """Release arrays by name (`RoundSchedule.arrays`) with budget μ.

        Raises:
            SettingError: The budget is so small that the noise lattice would be too coarse.
        """
        schedule = self.schedule(mu)
        descent, summed, released = schedule.descent(records.length), schedule.summing(records), []
        for number in range(schedule.passes):
            parts = schedule.noise(records.length, records.classes, number)
            sums = np.split(summed(descent.broadcast), np.cumsum([count for count, _ in parts])[:-1])
            drawn = [add_noise(part, sigma, noise, STEP) for part, (_, sigma) in zip(sums, parts, strict=True)]
            released.append(np.concatenate(drawn))
            descent.receive(released[-1])
        return schedule.arrays(released, records.length)

    def exact_head(self, records: Records, mu: float) -> Floats:
        """Return the head [length, classes] of the same rounds without noise. PRIVATE: nothing protects the records."""
        schedule = self.schedule(mu)
        descent, summed = schedule.descent(records.length), schedule.summing(records)
        for _ in range(schedule.passes):
            descent.receive(np.asarray(summed(descent.broadcast) * STEP, dtype=np.float64))
        return descent.final_head

    def head(self, released: dict[str, NDArray[Any]], mu: float) -> Floats:
        """Return the head's weights [length, classes] on vectors: a function of the release."""
        return self.schedule(mu).final_head(released)

    def numbers(self, length: int, classes: int) -> int:
        """Return how many noisy numbers are released for vectors of this length and this number of classes."""
        schedule = self.schedule(1.0)
        return sum(count for number in range(schedule.passes) for count, _ in schedule.noise(length, classes, number))

    def check(self, run: Any) -> None:
        """Raise ValueError if the run does not support sums over records."""
        super().check(run)
        student = run.student
        conflicts = (
            (run.transcription is not None, "a transcription releases annotations. Set transcription to null"),
            (
                student.kind != "sums",
                f"a student of kind {student.kind} learns from answers, not from sums. Remove student.kind, or use a "
                "mechanism that counts votes",
            ),
            (run.teachers.averages, "no teacher is trained. Set teachers.kind=linear"),
            (run.queries.rounds > 1, "no query is asked. Set queries.rounds=1"),
            (
                student.statistics == "current",
                "with current statistics one record would change the features of its whole batch, far more than is "
                "charged. Set student.statistics=original",
            ),
        )
        for conflict, reason in conflicts:
            if conflict:
                raise ValueError(f"aggregation.mechanism={self.mechanism}: {reason}")


def mu_left(epsilon: float, delta: float, spent: Event = NOTHING) -> float:
    """Return the μ of a run's budget after `spent`. Raises SettingError if nothing is left."""
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

    def schedule(self, mu: float) -> RoundSchedule:
        return RoundSchedule(moments_sigma(mu), findings=self.findings > 1)


class Gradients(Sums):
    """Rounds of noised clipped gradients over all records, in the metric of the noised moments."""

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

    def schedule(self, mu: float) -> RoundSchedule:
        return RoundSchedule(
            moments_sigma(mu * math.sqrt(self.share)),
            self.rounds,
            self.clip,
            self.learning_rate,
            2 * self.clip * math.sqrt(self.rounds / (1 - self.share)) / mu,
            self.findings > 1,
        )
