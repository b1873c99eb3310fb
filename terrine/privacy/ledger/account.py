"""What a dataset may spend and has spent: the ledger's arithmetic, on rows alone.

Costs are events; a release that is reserved and not committed counts with its worst case. Two questions have two
answers. *May this be released?* is answered by a filter (`filters`), fixed by the first release for ever: the budget
holds however releases are chosen after looking at earlier ones, so it is the guarantee of an account. *What was used?*
is the price of all events together as if they had been planned: never more than the budget, and what is printed.

Finished releases are added up as they finish (`Past`), so that an account of a hundred thousand releases is as small as
one of ten. Their sums are exact: whatever order rows come in, and wherever a sum was taken up again, it is the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from terrine.errors import BudgetError, LedgerError
from terrine.privacy.accounting.events import (
    Event,
    GaussianEvent,
    NonPrivateEvent,
    RepeatedEvent,
    compose,
    counts,
    from_json,
    to_json,
)
from terrine.privacy.accounting.filters import Filter, RenyiSum, filter_for
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared, round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.people import Mention
from terrine.privacy.ledger.task import Task


@dataclass(frozen=True)
class Budget:
    """What may be spent on a dataset over all runs.

    Attributes:
        epsilon: The budget; None records and never refuses.
        mode: `release`, or `replay` where replayed noise is allowed.
    """

    dataset: str
    epsilon: float | None
    delta: float
    mode: Literal["release", "replay"]

    def __str__(self) -> str:
        limit = "no limit" if self.epsilon is None else f"ε={self.epsilon:g}"
        return f"{limit} at δ={self.delta:g}, mode {self.mode!r}"


@dataclass(frozen=True)
class ExactSum:
    """A sum of floats that was never rounded."""

    finite: Fraction = Fraction(0)
    endless: int = 0

    def plus(self, value: float, times: int = 1) -> "ExactSum":
        """The sum with `value` in it `times` more."""
        if not math.isfinite(value):
            return replace(self, endless=self.endless + times)
        return replace(self, finite=self.finite + times * Fraction(value))

    def __add__(self, other: "ExactSum") -> "ExactSum":
        return ExactSum(self.finite + other.finite, self.endless + other.endless)

    def __float__(self) -> float:
        """The sum rounded once, as `math.fsum` of its terms is."""
        return math.inf if self.endless else float(self.finite)

    def to_json(self) -> list[Any]:
        """The sum as JSON values, exactly."""
        return [str(self.finite), self.endless]

    @classmethod
    def from_json(cls, tree: Sequence[Any]) -> "ExactSum":
        """The sum that `to_json` wrote."""
        return cls(Fraction(tree[0]), int(tree[1]))


@dataclass(frozen=True)
class Past:
    """Finished releases, added up.

    Attributes:
        releases: How many there were of which something could have been said: whose worst case is not empty.
        gaussian: μ² of their Gaussian parts.
        others: Their other parts, with how often each was run.
    """

    releases: int = 0
    cost: ExactSum = ExactSum()
    gaussian: ExactSum = ExactSum()
    others: Mapping[Event, int] = field(default_factory=dict)

    def plus(self, event: Event, kept: Filter) -> "Past":
        """These and one more that cost `event`."""
        gaussian, others = self.gaussian, dict(self.others)
        for part, count in counts(event).items():
            if isinstance(part, GaussianEvent):
                gaussian = gaussian.plus(mu_squared(part), count)
            else:
                others[part] = others.get(part, 0) + count
        return Past(self.releases + 1, self.cost.plus(kept.cost(event)), gaussian, others)

    def and_those(self, other: "Past", kept: Filter) -> "Past":
        """These and another account's, whose costs are taken in the measure `kept`, in which they add up, too."""
        others = dict(self.others)
        for part, count in other.others.items():
            others[part] = others.get(part, 0) + count
        cost = self.cost.plus(kept.cost(other.event()))
        return Past(self.releases + other.releases, cost, self.gaussian + other.gaussian, others)

    def event(self) -> Event:
        """All of them together, as one composition: Gaussian mechanisms are together one of the root of Σ μ²."""
        endless = self.gaussian.endless > 0
        mu = 0.0 if endless else math.sqrt(float(self.gaussian))
        parts: list[Event] = [NonPrivateEvent()] * endless + [GaussianEvent(mu, 1.0)] * (mu > 0)
        return compose(*parts, *(RepeatedEvent(part, count) for part, count in self.others.items()))

    def to_json(self) -> dict[str, Any]:
        """The sums as JSON values, exactly."""
        return {
            "releases": self.releases,
            "cost": self.cost.to_json(),
            "gaussian": self.gaussian.to_json(),
            "others": [[to_json(part), count] for part, count in self.others.items()],
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Past":
        """The sums that `to_json` wrote."""
        return cls(
            int(tree["releases"]),
            ExactSum.from_json(tree["cost"]),
            ExactSum.from_json(tree["gaussian"]),
            {from_json(part): count for part, count in tree["others"]},
        )


@dataclass
class Account:
    """One dataset's budget and releases.

    Attributes:
        reserved: Worst case by release, in the order of reservation, of releases that are not among `past`.
        committed: Realised cost by release, of these.
        unit: What its releases protect (`record`, `group`, `label`), where that was said when it was opened.
        opened: The budget that the first release was reserved under, where that is not the one in force: it decides the
            filter's order for ever.
        first: The worst case of the first release that costs anything, where that may be among `past`.
        past: Finished releases, added up.
        people: Digests of the records that its releases protect, and of those it published.
        linked: Accounts about the same people: what one releases counts in all.
        tasks: What its releases are about, each once, in the order of reservation.
        promised: The largest ε, by δ, of the budgets that were in force when anything was reserved; None where there
            was no limit.
    """

    budget: Budget
    reserved: dict[str, Event]
    committed: dict[str, Event]
    unit: str | None = None
    opened: Budget | None = None
    first: Event | None = None
    past: Past = Past()
    people: list[Mention] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    promised: dict[float, float | None] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)

    def reserve(self, release_id: str, worst_case: Event) -> None:
        """Take up a release at its worst case."""
        self.reserved[release_id] = worst_case
        self.promised[self.budget.delta] = _larger(self.budget.epsilon, self.promised.get(self.budget.delta, 0.0))
        if self.first is None and counts(worst_case):
            self.first, self.opened = worst_case, self.budget

    def finish(self, release_id: str, cost: Event) -> None:
        """Add a release that was reserved to the past, at what it cost."""
        worst_case = self.reserved.pop(release_id)
        if counts(worst_case):
            assert self.first is not None
            self.past = self.past.plus(cost, self._filter(self.first))

    def link(self, names: Sequence[str], other: "Account") -> None:
        """Add up with these accounts, which have the same sums as `other`: what they released, or have reserved, counts
        here, and what they promised is promised of all. Where sums are kept by other rules nothing is: of two one could
        be chosen by what came out under the other."""
        self.linked += names
        for delta, epsilon in other.promised.items():
            self.promised[delta] = _larger(epsilon, self.promised.get(delta, 0.0))
        if self.first is None and other.first is not None:
            self.first, self.opened = other.first, other.opened or other.budget
        elif (
            self.first is not None
            and other.first is not None
            and other._filter(other.first) != self._filter(self.first)
        ):
            self.promised[self.budget.delta] = None
        if self.first is not None:
            self.past = self.past.and_those(other.past, self._filter(self.first))
        self.reserved |= other.reserved

    def guarantee(self) -> float | None:
        """The ε, at the budget's δ, of all releases, past and to come, however they are chosen; None: none is promised.

        A budget that is lowered after looking at what was released lets less through, and promises no less than before.
        What was promised at a larger δ says nothing at a smaller one, and accounts that were linked after they had
        released may together have passed what each had promised.
        """
        largest = self.budget.epsilon
        for delta, epsilon in self.promised.items():
            largest = _larger(largest, epsilon if delta <= self.budget.delta else None)
        return None if largest is None or self.total() > largest else largest

    def used(self) -> Event:
        """Everything that was spent, as one composition: what is open at its worst case."""
        return compose(self.past.event(), *self._open())

    def total(self, *further: Event) -> float:
        """The ε that a budget is compared with if `further` releases are made after each other, each at its worst.

        The first release of all is priced as it is, exactly or by its losses; from the second on the account's filter
        adds up. That is sound because what the first may cost at most is public: where it alone passes the filter's
        limit nothing follows it, whatever it turns out to cost, and otherwise the filter covers it, too.
        """
        delta = self.budget.delta
        paid = [(worst, self.committed.get(name, worst)) for name, worst in self.reserved.items()]
        paid = [(worst, cost) for worst, cost in [*paid, *((event, event) for event in further)] if counts(worst)]
        if self.past.releases + len(paid) < 2:
            return price(compose(self.past.event(), *(cost for _, cost in paid)), delta)
        first = self.first or paid[0][0]
        kept = self._filter(first)
        total = kept.epsilon(self._sum([cost for _, cost in paid], kept), delta)
        if isinstance(kept, RenyiSum):
            total = max(total, kept.epsilon(kept.cost(first), delta))
        return total

    def check_same(self, budget: Budget, unit: str | None) -> None:
        """Refuse releases that name another budget or mode than the account's, or protect another unit.

        Raises:
            LedgerError: see above; without a budget, δ and unit may differ.
        """
        known = self.budget
        if known != budget and not (known.mode == budget.mode and known.epsilon is budget.epsilon is None):
            raise LedgerError(
                f"The dataset is registered with {known}, not with {budget}. Set ledger.epsilon and δ to what is "
                "registered, or change that by `terrine ledger --budget`; its mode stays what it was."
            )
        if budget.epsilon is not None and unit is not None and self.unit not in (None, unit):
            raise LedgerError(
                f"The account is for releases that protect a {self.unit}, and this one protects a {unit}: their ε do "
                "not add up, and records that were released about in one unit are not protected in another. Protect a "
                f"{self.unit}, or use an account of other people's data. Nothing was released."
            )

    def check_all(self, worst_cases: Sequence[Event], noise_kind: str, subject: str | None = None) -> None:
        """Refuse releases, called `subject` if it is refused, that the budget does not allow one after the other.

        Raises:
            LedgerError: replayed noise on a dataset kept for releases.
            BudgetError: over budget; the message says what is left.
        """
        budget = self.budget
        if noise_kind == "replay" and budget.mode != "replay":
            raise LedgerError(
                "Replayed noise is not private, and this dataset is registered for releases: use secure noise, or "
                "another ledger for experiments on public benchmark data. Nothing was released."
            )
        if budget.epsilon is None or (total := self.total(*worst_cases)) <= budget.epsilon:
            return
        named, alone = ("This release", "itself") if len(worst_cases) == 1 else ("These releases", "themselves")
        left = self.left()
        error = BudgetError(
            f"{subject or named} may cost up to ε={round_up(price(compose(*worst_cases), budget.delta)):g} by {alone} "
            f"and would bring the account to ε={round_up(total):g} at δ={budget.delta:g} over all runs, past its "
            f"budget of ε={budget.epsilon:g}. Spent or reserved so far: ε={round_up(self.total()):g}; left is room for "
            f"one more Gaussian release of ε={left:.4f} by itself (exact costs do not add up linearly). Nothing was "
            "drawn and nothing was charged."
        )
        error.needs, error.left = total, left
        raise error

    def left(self, *linked: "Account") -> float | None:
        """The ε by itself, at the budget's δ, of the largest Gaussian release that is still allowed, here and by
        accounts that are linked with this one; None without a budget."""
        rooms = [(mu, each) for each in (self, *linked) if (mu := each._mu_left()) is not None]
        if not rooms:
            return None
        mu, least = min(rooms, key=lambda room: room[0])
        return self.budget.epsilon if least is self and self._paid() is None else epsilon_of(mu, self.budget.delta)

    def _mu_left(self) -> float | None:
        """What a single further release may cost as a Gaussian one, in μ; None without a budget."""
        epsilon, delta, paid = self.budget.epsilon, self.budget.delta, self._paid()
        if epsilon is None:
            return None
        return mu_of(epsilon, delta) if paid is None else paid[0].mu_left(paid[1], epsilon, delta)

    def to_json(self) -> dict[str, Any]:
        """The account as JSON values."""

        def budget(value: Budget | None) -> list[Any] | None:
            return None if value is None else [value.dataset, value.epsilon, value.delta, value.mode]

        return {
            "budget": budget(self.budget),
            "reserved": [[name, to_json(event)] for name, event in self.reserved.items()],
            "unit": self.unit,
            "opened": budget(self.opened),
            "first": None if self.first is None else to_json(self.first),
            "past": self.past.to_json(),
            "people": [list(mention) for mention in self.people],
            "linked": self.linked,
            "promised": list(self.promised.items()),
            "tasks": [[task.edition, task.to_json()] for task in self.tasks],
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Account":
        """The account that `to_json` wrote."""
        return cls(
            Budget(*tree["budget"]),
            {name: from_json(event) for name, event in tree["reserved"]},
            {},
            tree["unit"],
            None if tree["opened"] is None else Budget(*tree["opened"]),
            None if tree["first"] is None else from_json(tree["first"]),
            Past.from_json(tree["past"]),
            [Mention(*mention) for mention in tree["people"]],
            list(tree["linked"]),
            dict(tree["promised"]),
            [Task.from_json(edition, task) for edition, task in tree["tasks"]],
        )

    def _open(self) -> list[Event]:
        return [self.committed.get(release_id, worst_case) for release_id, worst_case in self.reserved.items()]

    def _filter(self, first: Event) -> Filter:
        opened = self.opened or self.budget
        return filter_for(first, opened.epsilon, opened.delta)

    def _sum(self, costs: Sequence[Event], kept: Filter) -> float:
        total = self.past.cost
        for cost in costs:
            total = total.plus(kept.cost(cost))
        return float(total)

    def _paid(self) -> tuple[Filter, float] | None:
        """The filter and the sum of costs in it, None where nothing was paid for yet."""
        first = self.first or next((worst for worst in self.reserved.values() if counts(worst)), None)
        if first is None:
            return None
        kept = self._filter(first)
        total = self._sum(self._open(), kept)
        if isinstance(kept, RenyiSum):
            total = max(total, kept.cost(first))
        return kept, total


def _larger(one: float | None, other: float | None) -> float | None:
    """The larger of two limits, None where one is none."""
    return None if one is None or other is None else max(one, other)


def check_together(
    accounts: Sequence[Account], worst_cases: Sequence[Event], noise_kind: str, subject: str | None = None
) -> None:
    """Refuse releases that the first of these accounts, or one that is linked with it, does not allow.

    Raises what `Account.check_all` does; of a linked account it says that it is one.
    """
    own, *linked = accounts
    own.check_all(worst_cases, noise_kind, subject)
    for other in linked:
        try:
            other.check_all(worst_cases, noise_kind, subject)
        except BudgetError as error:
            raise BudgetError(
                "An account that is linked with this one, since both are about the same people, does not allow it "
                f"(`terrine ledger`). {error}"
            ) from error
