"""Base classes and registry of aggregation mechanisms, and the budget of a run.

Two families share the section `aggregation`. A `Mechanism` answers queries from histograms of votes. A `Sums`
(`terrine.aggregation.sums`) adds up contributions of records, without votes.

A mechanism answers in query order and stops before the exact ε of its releases would exceed the run's budget. The
decision to stop uses only public parameters and released outputs, so it is free: a Gaussian filter (Smith & Thakurta
2022) for mechanisms whose cost depends on the release, a fixed number of answers for the others. The ledger reserves
`worst_case` before any noise is drawn; `Answers.event` is what was spent, never more.

>>> parse_mechanism({"mechanism": "confident", "threshold": 150, "sigma1": 120, "sigma2": 40})
ConfidentGNMax(mechanism='confident', threshold=150.0, sigma1=120.0, sigma2=40.0)
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from terrine.aggregation.votes import HistogramArray, charged, movable
from terrine.errors import SettingError
from terrine.privacy.accounting.events import Event, GaussianEvent, RepeatedEvent, compose
from terrine.privacy.accounting.gaussian import GaussianFilter, mu_squared
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import NoiseSource, check_slack
from terrine.privacy.statement import declare
from terrine.settings import Field, Kinds, Settings, Unit

NOTHING: Event = compose()

BUDGET = ("epsilon", "delta", "noise", "where")
"""Settings of the section `aggregation` that are not parameters of its mechanism."""
_OF_FINDINGS = ("findings", "findings_bound")
"""Parameters that are part of a mechanism's description only if there are several findings."""


class Aggregation(Settings, ABC):
    """Mechanism that turns private data into a release; its fields are its public parameters.

    As the section `aggregation` of a run it also contains the run's budget: `epsilon`, `delta`, `noise` and `where`.
    Budget settings are not parameters of the mechanism (`parameters`): its methods take the budget as arguments.
    """

    text: ClassVar[str]
    """Sentence for the statement that describes how votes or records became a release."""
    reveals: ClassVar[Literal["argmax", "histogram", "sums"]]
    """Released values: the label of each answer, the noisy counts of all classes, or sums over records."""
    gaussian: ClassVar[bool] = True
    """True if all noise is Gaussian, so that the price is exact."""
    outcome_dependent: ClassVar[bool] = False
    """True if the cost depends on the release; the guarantee is then the budget (`statement`)."""
    informed: ClassVar[bool] = False
    """True if later rounds compare votes with a student trained on earlier answers (`Mechanism.informed_by`)."""
    by_parties: ClassVar[bool] = False
    """True if `terrine.collaboration` can compute it: noisy argmax or counts, with or without a noisy test, or sums."""

    mechanism: str
    epsilon: Annotated[float, Field(gt=0, repr=False)] = 8.0
    """ε of the run. Queries are answered as long as the exact ε stays below it."""
    delta: Annotated[float, Field(gt=0, lt=1, repr=False)] = 1e-5
    """δ of the run."""
    noise: Annotated[Literal["secure", "replay"], Field(repr=False)] = "secure"
    """Source of the noise: `secure`, the operating system; `replay`, the seed, for ablations, NOT PRIVATE."""
    where: Annotated[Literal["local", "parties"], Field(repr=False)] = "local"
    """Place of the aggregation: `local`, one process counts the votes; `parties`, parties keep their votes (see
    `collaboration`)."""
    findings: Annotated[int, Field(ge=1, repr=False)] = 1
    """Number of findings per record with data.findings. Set by the run."""
    findings_bound: Annotated[int | None, Unit("findings"), Field(ge=1, repr=False)] = None
    """With data.findings: maximum number of findings that a teacher may report per query, those it is most confident
    of. A lower bound reduces the noise on each answer (docs/targets.md). null: no bound."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name in get_args(cls.model_fields["mechanism"].annotation):
            declare(name, cls.parameters(), outcome_dependent=cls.outcome_dependent)

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        """Return the names of the mechanism's own parameters."""
        return tuple(name for name in cls.model_fields if name not in ("mechanism", *_OF_FINDINGS, *BUDGET))

    @abstractmethod
    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """Return the maximum cost of a release about `queries` queries after `spent`, without access to data."""

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON values, for the release and its statement."""
        own = {"mechanism": self.mechanism} | {name: getattr(self, name) for name in self.parameters()}
        several = {name: getattr(self, name) for name in _OF_FINDINGS} if self.findings > 1 else {}
        return own | {name: value for name, value in several.items() if value is not None}

    def refuse_findings(self, attack: str) -> None:
        """Raise SettingError if there are several findings, because the attack needs records with a single class."""
        if self.findings > 1:
            raise SettingError(
                f"{attack} attacks answers about one class, and this run has several findings (data.findings), so "
                "it does not apply."
            )

    def check(self, run: Any) -> None:
        if self.findings_bound is not None and self.reveals == "sums":
            raise ValueError(
                f"aggregation.findings_bound={self.findings_bound} is for teachers that vote, and "
                f"aggregation.mechanism={self.mechanism} adds up records (auto chooses it if one record is protected). "
                "Remove it, or set aggregation.mechanism=histogram"
            )
        if self.findings_bound is not None and not run.data.several:
            raise ValueError(
                f"aggregation.findings_bound={self.findings_bound} is for teachers that vote on several findings "
                "(data.findings). Remove it"
            )
        if run.aggregation.where == "parties" and not self.by_parties:
            raise ValueError(
                f"aggregation.mechanism={self.mechanism} does not go with aggregation.where=parties, which cannot "
                "compute it. Use histogram, gnmax or confident"
            )
        if not run.teachers.unprotected:
            check_slack(1, run.aggregation.epsilon, run.aggregation.delta, "aggregation.epsilon")


UNANSWERED = -1
# Margin between sums of costs and the filter's limit: more than the rounding error of either, yet negligible.
_ROOM = 1 - 1e-12


@dataclass(frozen=True, eq=False)
class Answers:
    """The release of a mechanism, and its cost.

    Attributes:
        answered: bool [queries], whether there is a label.
        labels: int64 [queries], -1 if unanswered.
        histograms: Noisy histograms, float64 [queries, classes], NaN if unanswered; None if only labels are released.
        event: The cost, at most the `worst_case` that was reserved.
        queried: Number of queries processed before the budget ended: the first ones in the order asked.
        reinforced: bool [queries], whether the label is the student's, confirmed; None for other mechanisms.
    """

    answered: NDArray[np.bool_]
    labels: NDArray[np.int64]
    histograms: NDArray[np.float64] | None
    event: Event
    queried: int
    reinforced: NDArray[np.bool_] | None = None


class Mechanism(Aggregation):
    """Mechanism that answers queries from histograms of votes; its fields are its public parameters.

    Formal guarantee of an implementation: given the earlier answers, the arrays of `answer` are exactly the releases of
    the mechanisms in `Answers.event` and depend on the histograms in no other way; the event's exact ε at `delta` is at
    most `epsilon`; its cost is at most that of `worst_case` for the same queries and budget.

    A new mechanism is one file in this folder: a class with a Literal name in `mechanism`, a Field for each parameter,
    and the abstract methods. With several findings, the methods count each question about a query as one query.
    """

    reveals: ClassVar[Literal["argmax", "histogram", "sums"]] = "argmax"

    @property
    def moved(self) -> int:
        """Number of a query's `findings` answers that one unit can move: min(K, 2τ), or K without a bound."""
        return movable(self.findings, self.findings_bound)

    def charged(self, queried: int) -> int:
        """Return how many of the first `queried` answers one unit can move: all, if each query is one question."""
        queries, others = divmod(queried, self.findings)
        return queries * self.moved + min(others, self.moved)

    def reached(self, charged: int, most: int) -> int:
        """Return how many answers, at most `most`, can be given if `charged` are paid for."""
        if charged >= self.charged(most):
            return most
        queries, others = divmod(charged, self.moved)
        return queries * self.findings + others

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Standard deviation of the noise on each count of an answer, in votes."""

    @abstractmethod
    def cost(self, queried: int, answered: int) -> Event:
        """Return the maximum cost of processing `queried` queries and answering `answered` of them."""

    @abstractmethod
    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        """Return how many of `queries` queries the budget covers for all possible votes, after `spent`."""

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Aggregation.worst_case`: exactly the cost, for mechanisms with a fixed number of answers."""
        certain = self.certain(queries, epsilon, delta, spent)
        return self.cost(certain, certain)

    @abstractmethod
    def answer(
        self, histograms: HistogramArray, *, epsilon: float, delta: float, noise: NoiseSource, spent: Event = NOTHING
    ) -> Answers:
        """Answer in query order until the exact ε would exceed `epsilon`.

        Args:
            histograms: int64 [queries, classes], rows summing to the number of teachers.
            epsilon: The run's budget, including `spent`.
            delta: δ at which ε is computed.
            noise: Source of the noise.
            spent: Cost of earlier rounds of the same run; `Answers.event` is the cost of this round only.

        Raises:
            InputError: The arrays are not histograms of votes.
            SettingError: The budget is invalid.
        """

    def informed_by(self, probabilities: ArrayLike) -> "Mechanism":
        """Return the mechanism of a later round, given a student's probabilities [queries, classes] on its queries."""
        return self

    def claimed(self, queried: int, answered: int, delta: float) -> float:
        """Return ε as papers state it for teachers that depend on one another: as if a record moved one vote per query.

        The claimed ε is not a guarantee. Statements print it next to the ε that holds.
        """
        return price(self.cost(queried, answered), delta)

    def canaries(self, teachers: int) -> dict[str, int]:
        """Return the attack points of an audit by name: votes for the first of two classes, without the moved vote.

        Raises:
            SettingError: With these parameters no histogram of this number of teachers reveals much.
        """
        return {"a tie": teachers // 2}


def budget_after(spent: Event, epsilon: float, delta: float) -> GaussianFilter:
    """Return the run's budget after charging `spent`."""
    return GaussianFilter(epsilon, delta, mu_squared_spent=mu_squared(spent))


def affordable_repetitions(event: Event, most: int, budget: GaussianFilter) -> int:
    """Return how many repetitions of a Gaussian `event`, at most `most`, fit in the budget; the number is exact."""
    count = min(most, int(budget.mu_squared_left * _ROOM / mu_squared(event)))
    while count and not budget.affords(RepeatedEvent(event, count)):
        count -= 1
    return count


def affordable_tests(
    passed: NDArray[np.bool_], test: Event, answer: Event, budget: GaussianFilter, *, findings: int = 1, moved: int = 1
) -> int:
    """Return how many queries, from the first on, the budget allows to be tested and, if they passed, answered.

    A query is tested only if the budget covers its test *and* its answer. So whether it is affordable does not depend
    on the outcome of its test, and no test is paid for whose answer would be unaffordable.

    Args:
        passed: bool [queries], the noisy outcome of each query's test.
        test: Cost of each tested query.
        answer: Additional cost of each query that passed.
        budget: Remaining budget before the first test; not modified.
        findings: Number of consecutive questions that belong to one query.
        moved: Maximum number of answers to one query that one unit can change.
    """
    tests = np.cumsum(charged(np.ones(len(passed), dtype=np.bool_), findings, moved))
    answers_after = np.concatenate(([0], np.cumsum(charged(passed, findings, moved)[:-1]))) + 1
    need = tests * mu_squared(test) + answers_after * mu_squared(answer)
    return int(np.searchsorted(need, budget.mu_squared_left * _ROOM, side="right")) if len(passed) else 0


def worst_case_of_tests(queries: int, test: Event, answer: Event, budget: GaussianFilter) -> Event:
    """Return the maximum cost of tests and answers: that of all queries, or the remaining budget."""
    everything = compose(RepeatedEvent(test, queries), RepeatedEvent(answer, queries))
    if mu_squared(everything) <= budget.mu_squared_left * _ROOM:
        return everything
    # Above the reach of `affordable_tests` and below the limit, each by more than the rounding of a sum.
    halfway = (1 + _ROOM) / 2
    return GaussianEvent(sensitivity=math.sqrt(budget.mu_squared_left * halfway), sigma=1.0)


MECHANISMS: Kinds[Aggregation] = Kinds(
    "aggregation",
    Aggregation,  # type: ignore[type-abstract]
    "terrine.aggregation",
    default="histogram",
    key="mechanism",
)


def parse_mechanism(description: Mapping[str, Any]) -> Aggregation:
    """Return the mechanism that `Mechanism.describe` described; other entries of the mapping are ignored.

    Raises:
        SettingError: The name is unknown, a parameter is missing, or a value is impossible.
    """
    kind = MECHANISMS.of(str(description.get("mechanism")))
    try:
        return kind(**{key: description[key] for key in kind.model_fields if key in description and key not in BUDGET})
    except ValidationError as error:
        faults = ", ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise SettingError(f"mechanism={description['mechanism']}: {faults}.") from error
