"""What every kind of the section `aggregation` has in common: a name, public parameters, and words for a statement.

Two families are below it. A `Mechanism` (`terrine.aggregation.mechanism`) answers queries from histograms of votes. A
`Sums` (`terrine.aggregation.sums`) adds up what records say themselves, and nobody votes.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal, get_args

from terrine.aggregation.budget import Budget
from terrine.privacy.accounting.events import Event, compose
from terrine.privacy.noise import check_slack
from terrine.privacy.statement import declare
from terrine.settings import Field, Settings, Unit

NOTHING: Event = compose()

_OF_FINDINGS = ("findings", "findings_bound")
"""What is said of a mechanism only where there are several findings."""


class Aggregation(Settings, ABC):
    """A way to turn private data into a release; its fields are its parameters, public values."""

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
    findings: Annotated[int, Field(ge=1, repr=False)] = 1
    """How many findings each query or record has, where it has several: those of data.findings; not for you to set."""
    findings_bound: Annotated[int | None, Unit("findings"), Field(ge=1, repr=False)] = None
    """With data.findings, the most findings that a teacher may say a query has, those that it is surest of: then one
    unit moves fewer answers, and each has less noise (docs/targets.md). null: all of them."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name in get_args(cls.model_fields["mechanism"].annotation):
            declare(name, cls.parameters(), outcome_dependent=cls.outcome_dependent)

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        """Return the names of the mechanism's own parameters."""
        return tuple(
            name for name in cls.model_fields if name not in ("mechanism", *_OF_FINDINGS, *Budget.model_fields)
        )

    @abstractmethod
    def worst_case(self, queries: int, epsilon: float, delta: float, spent: Event = NOTHING) -> Event:
        """The most a release about so many queries can cost within what `spent` left; no data is looked at."""

    def describe(self) -> dict[str, Any]:
        """Name and parameters as JSON values: for the release and its statement."""
        own = {"mechanism": self.mechanism} | {name: getattr(self, name) for name in self.parameters()}
        several = {name: getattr(self, name) for name in _OF_FINDINGS} if self.findings > 1 else {}
        return own | {name: value for name, value in several.items() if value is not None}

    def check(self, run: Any) -> None:
        if run.aggregation.where == "parties" and not self.by_parties:
            raise ValueError(
                f"aggregation.mechanism={self.mechanism} does not go with aggregation.where=parties, which cannot "
                "compute it. Use histogram, gnmax or confident"
            )
        if not run.teachers.unprotected:
            check_slack(1, run.aggregation.epsilon, run.aggregation.delta, "aggregation.epsilon")
