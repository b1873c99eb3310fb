"""Base classes of all aggregation mechanisms, their budget, and their registry.

Two families share the section `aggregation`. A `Mechanism` answers queries from histograms of votes. A `Sums`
(`terrine.aggregation.sums`) adds up what records contribute, without votes.

A mechanism answers in query order and stops before the exact ε of what it has released would pass the run's budget.
The decision to stop uses public parameters and released outputs alone, so it is itself free: a Gaussian filter (Smith &
Thakurta 2022) for mechanisms whose cost depends on what was released, a fixed number of answers for the others.
`worst_case` is what the ledger reserves before any noise is drawn; `Answers.event` is what was spent, never more.

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
"""Settings of the section `aggregation` that are no parameters of its mechanism."""
_OF_FINDINGS = ("findings", "findings_bound")
"""What is said of a mechanism only where there are several findings."""


class Aggregation(Settings, ABC):
    """A way to turn private data into a release; its fields are its parameters, public values.

    As the section `aggregation` of a run it holds the run's budget, too: `epsilon`, `delta`, `noise` and `where`. They
    are no parameters of the mechanism (`parameters`), whose methods take the budget as arguments.
    """

    text: ClassVar[str]
    """In a sentence, for the statement: what was done with the votes, or the records."""
    reveals: ClassVar[Literal["argmax", "histogram", "sums"]]
    """What is released: of each answer its label, or the noisy counts of all classes; or sums over records."""
    gaussian: ClassVar[bool] = True
    """Whether all of its noise is Gaussian, and its price exact."""
    outcome_dependent: ClassVar[bool] = False
    """Whether what is spent depends on what is released: then its guarantee is the budget (`statement`)."""
    informed: ClassVar[bool] = False
    """Whether later rounds compare the votes with a student of the earlier ones (`Mechanism.informed_by`)."""
    by_parties: ClassVar[bool] = False
    """Whether `terrine.collaboration` can compute it: a noisy argmax or noisy counts, after a noisy test or none, or
    noisy sums."""

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
        """The most a release about so many queries can cost within what `spent` left; no data is looked at."""

    def describe(self) -> dict[str, Any]:
        """Name and parameters as JSON values: for the release and its statement."""
        own = {"mechanism": self.mechanism} | {name: getattr(self, name) for name in self.parameters()}
        several = {name: getattr(self, name) for name in _OF_FINDINGS} if self.findings > 1 else {}
        return own | {name: value for name, value in several.items() if value is not None}

    def refuse_findings(self, attack: str) -> None:
        """Raise SettingError if an attack, made for records of one class each, meets several findings."""
        if self.findings > 1:
            raise SettingError(
                f"{attack} attacks answers about one class of many, and this run has several findings "
                "(data.findings): they have no such attack."
            )

    def check(self, run: Any) -> None:
        if self.findings_bound is not None and self.reveals == "sums":
            raise ValueError(
                f"aggregation.findings_bound={self.findings_bound} is for teachers that vote, and "
                f"aggregation.mechanism={self.mechanism} adds up records (auto takes it where one record is "
                "protected). Leave it out, or have teachers vote: aggregation.mechanism=histogram"
            )
        if self.findings_bound is not None and not run.data.several:
            raise ValueError(
                f"aggregation.findings_bound={self.findings_bound} is for teachers that vote on several findings "
                "(data.findings). Leave it out"
            )
        if run.aggregation.where == "parties" and not self.by_parties:
            raise ValueError(
                f"aggregation.mechanism={self.mechanism} does not go with aggregation.where=parties, which cannot "
                "compute it. Use histogram, gnmax or confident"
            )
        if not run.teachers.unprotected:
            check_slack(1, run.aggregation.epsilon, run.aggregation.delta, "aggregation.epsilon")


UNANSWERED = -1
# How far below the limit of the filter a sum of costs must stay: above the rounding of either, below any meaning.
_ROOM = 1 - 1e-12


@dataclass(frozen=True, eq=False)
class Answers:
    """What a mechanism releases, and what it cost.

    Attributes:
        answered: bool [queries], whether there is a label.
        labels: int64 [queries], -1 where unanswered.
        histograms: The noisy histograms, float64 [queries, classes] with NaN rows where unanswered, or None for
            mechanisms that release labels alone.
        event: What was spent. No more than the `worst_case` that was reserved.
        asked: How many queries were looked at before the budget ended: the first ones in the order they were asked in.
        reinforced: bool [queries], the labels that are the student's own, confirmed; None for mechanisms without.
    """

    answered: NDArray[np.bool_]
    labels: NDArray[np.int64]
    histograms: NDArray[np.float64] | None
    event: Event
    asked: int
    reinforced: NDArray[np.bool_] | None = None


class Mechanism(Aggregation):
    """A way to answer queries from histograms of votes; its fields are its parameters, public values.

    Formal guarantee of an implementation: the arrays of `answer` are, given the earlier ones, what the mechanisms in
    `Answers.event` release about the histograms, and nothing else in them depends on the histograms; the event's exact
    ε at `delta` is at most `epsilon`; its cost is at most that of `worst_case` for the same queries and budget.

    A new one is one file beside this one: a class with a Literal name in `mechanism`, a Field for each parameter, and
    what is abstract here.
    """

    reveals: ClassVar[Literal["argmax", "histogram", "sums"]] = "argmax"

    @property
    def moved(self) -> int:
        """How many of a query's `findings` answers one unit can move (`terrine.aggregation.votes`)."""
        return movable(self.findings, self.findings_bound)

    def charged(self, asked: int) -> int:
        """How many of the first `asked` answers one unit can move: each, where a query is one question."""
        queries, others = divmod(asked, self.findings)
        return queries * self.moved + min(others, self.moved)

    def reached(self, charged: int, most: int) -> int:
        """How many of at most `most` answers, the first ones, can be given if so many are paid for."""
        if charged >= self.charged(most):
            return most
        queries, others = divmod(charged, self.moved)
        return queries * self.findings + others

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Standard deviation of the noise on each count of an answer, in votes."""

    @abstractmethod
    def cost(self, asked: int, answered: int) -> Event:
        """What it costs at most to look at so many queries and to answer so many of them.

        Here and below, a question about a query, where it has several findings.
        """

    @abstractmethod
    def certain(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> int:
        """How many of so many queries are sure to be paid for, whatever the votes are, after what was `spent`."""

    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """See `Aggregation.worst_case`.

        Here: exactly what will be spent, for mechanisms whose number of answers is fixed.
        """
        certain = self.certain(queries, epsilon, delta, spent)
        return self.cost(certain, certain)

    @abstractmethod
    def answer(
        self, histograms: HistogramArray, *, epsilon: float, delta: float, noise: NoiseSource, spent: Event = NOTHING
    ) -> Answers:
        """Answer in query order until the exact ε would pass `epsilon`.

        Args:
            histograms: int64 [queries, classes], rows summing to the number of teachers.
            epsilon: The run's own budget, for what was spent and what will be.
            spent: What earlier rounds of the same run cost; `Answers.event` is this round's alone.

        Raises:
            InputError: histograms that are none.
            SettingError: an impossible budget.
        """

    def informed_by(self, probabilities: ArrayLike) -> "Mechanism":
        """The mechanism of a later round, given a student's scores [queries, classes] of its queries."""
        return self

    def claimed(self, asked: int, answered: int, delta: float) -> float:
        """ε as a paper would claim it whose teachers depend on one another: as if a record moved one vote per query.

        No guarantee, and never used as one: a statement prints it beside the figure that holds.
        """
        return price(self.cost(asked, answered), delta)

    def analysed(self) -> dict[str, Any] | None:
        """What data-dependent accounting calls the mechanism and its noise; None where it has no analysis of it."""
        return None

    def canaries(self, teachers: int) -> dict[str, int]:
        """Where an audit attacks: by name, votes for the first of two classes when the vote that moves is not there.

        Raises:
            SettingError: parameters with which no histogram of so many teachers shows much.
        """
        return {"a tie": teachers // 2}


def budget_after(spent: Event, epsilon: float, delta: float) -> GaussianFilter:
    """The run's budget with what was spent charged to it."""
    return GaussianFilter(epsilon, delta, mu_squared_spent=mu_squared(spent))


def affordable_repetitions(event: Event, most: int, budget: GaussianFilter) -> int:
    """How many of a Gaussian `event`, at most `most`, fit the budget exactly."""
    count = min(most, int(budget.mu_squared_left * _ROOM / mu_squared(event)))
    while count and not budget.affords(RepeatedEvent(event, count)):
        count -= 1
    return count


def affordable_tests(
    passed: NDArray[np.bool_], test: Event, answer: Event, budget: GaussianFilter, *, findings: int = 1, moved: int = 1
) -> int:
    """How many queries, the first ones, can be tested and answered where they passed before the budget is met.

    A query is looked at only when there is room for its test *and* its answer, so the outcome of its test does not
    decide whether it can be paid for, and no test is bought whose answer could not be.

    Args:
        passed: bool [queries], the noisy outcome each query's test has if it is looked at.
        test: What every query looked at costs.
        answer: What every query that passed costs besides.
        findings: Of how many consecutive questions one unit moves at most `moved`: those about one query.
    """
    tests = np.cumsum(charged(np.ones(len(passed), dtype=np.bool_), findings, moved))
    answers_after = np.concatenate(([0], np.cumsum(charged(passed, findings, moved)[:-1]))) + 1
    need = tests * mu_squared(test) + answers_after * mu_squared(answer)
    return int(np.searchsorted(need, budget.mu_squared_left * _ROOM, side="right")) if len(passed) else 0


def worst_case_of_tests(queries: int, test: Event, answer: Event, budget: GaussianFilter) -> Event:
    """The most that tests and answers can cost: all queries tested and answered, or all that is left of the budget."""
    everything = compose(RepeatedEvent(test, queries), RepeatedEvent(answer, queries))
    if mu_squared(everything) <= budget.mu_squared_left * _ROOM:
        return everything
    # Above what `affordable_tests` can reach and below the limit, each by more than the rounding of a sum.
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
    """Return the mechanism that `Mechanism.describe` described; what else the mapping holds says nothing about it.

    Raises:
        SettingError: an unknown name, a missing parameter, or an impossible value.
    """
    kind = MECHANISMS.of(str(description.get("mechanism")))
    try:
        return kind(**{key: description[key] for key in kind.model_fields if key in description and key not in BUDGET})
    except ValidationError as error:
        faults = ", ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise SettingError(f"mechanism={description['mechanism']}: {faults}.") from error
