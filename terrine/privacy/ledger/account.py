"""Account arithmetic: the budget, and the cost of the releases.

Costs are stored as privacy events. A release that is reserved but not committed counts with its worst case. Two
questions are separate:

- *May this be released?* A filter (`filters`), which the first release fixes permanently, decides. The budget then
  holds even if releases are chosen after looking at earlier ones, so it is the guarantee of an account.
- *What was used?* The price of all events together, as if they had been planned. This price never exceeds the budget
  and is the figure that is printed.

Committed releases are added up (`Past`), so an account of 100,000 releases is as small as one of ten. Sums are exact
and therefore do not depend on the order of rows.
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
    """Limit on the cost of all runs on a dataset.

    Attributes:
        epsilon: ε of the budget; None records costs without a limit.
        mode: `release`, or `replay` if replayed noise is allowed.
    """

    dataset: str
    epsilon: float | None
    delta: float
    mode: Literal["release", "replay"]

    def __str__(self) -> str:
        limit = "no limit" if self.epsilon is None else f"ε={self.epsilon:g}"
        return f"{limit} at δ={self.delta:g}"


@dataclass(frozen=True)
class ExactSum:
    """Sum of floats without rounding."""

    finite: Fraction = Fraction(0)
    endless: int = 0

    def plus(self, value: float, times: int = 1) -> "ExactSum":
        """Return the sum plus `times` · `value`."""
        if not math.isfinite(value):
            return replace(self, endless=self.endless + times)
        return replace(self, finite=self.finite + times * Fraction(value))

    def __add__(self, other: "ExactSum") -> "ExactSum":
        return ExactSum(self.finite + other.finite, self.endless + other.endless)

    def __float__(self) -> float:
        """Return the sum rounded once, like `math.fsum`."""
        return math.inf if self.endless else float(self.finite)

    def to_json(self) -> list[Any]:
        """Return the exact sum as JSON values."""
        return [str(self.finite), self.endless]

    @classmethod
    def from_json(cls, tree: Sequence[Any]) -> "ExactSum":
        """Return the sum that `to_json` described."""
        return cls(Fraction(tree[0]), int(tree[1]))


@dataclass(frozen=True)
class Past:
    """Sums over committed releases.

    Attributes:
        releases: Number of committed releases with a non-zero worst case.
        cost: Sum of the costs of committed releases, in the measure of the account's filter.
        gaussian: μ² of the Gaussian parts of committed releases.
        others: Non-Gaussian parts of committed releases, with the number of repetitions.
    """

    releases: int = 0
    cost: ExactSum = ExactSum()
    gaussian: ExactSum = ExactSum()
    others: Mapping[Event, int] = field(default_factory=dict)

    def plus(self, event: Event, kept: Filter) -> "Past":
        """Return the sums with one more release of cost `event`."""
        gaussian, others = self.gaussian, dict(self.others)
        for part, count in counts(event).items():
            if isinstance(part, GaussianEvent):
                gaussian = gaussian.plus(mu_squared(part), count)
            else:
                others[part] = others.get(part, 0) + count
        return Past(self.releases + 1, self.cost.plus(kept.cost(event)), gaussian, others)

    def and_those(self, other: "Past", kept: Filter) -> "Past":
        """Return the sums including another account's releases, priced by the filter `kept`."""
        others = dict(self.others)
        for part, count in other.others.items():
            others[part] = others.get(part, 0) + count
        cost = self.cost.plus(kept.cost(other.event()))
        return Past(self.releases + other.releases, cost, self.gaussian + other.gaussian, others)

    def event(self) -> Event:
        """Return all releases as one composition; Gaussian parts become one mechanism with μ² = Σ μ²."""
        endless = self.gaussian.endless > 0
        mu = 0.0 if endless else math.sqrt(float(self.gaussian))
        parts: list[Event] = [NonPrivateEvent()] * endless + [GaussianEvent(mu, 1.0)] * (mu > 0)
        return compose(*parts, *(RepeatedEvent(part, count) for part, count in self.others.items()))

    def to_json(self) -> dict[str, Any]:
        """Return the exact sums as JSON values."""
        return {
            "releases": self.releases,
            "cost": self.cost.to_json(),
            "gaussian": self.gaussian.to_json(),
            "others": [[to_json(part), count] for part, count in self.others.items()],
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Past":
        """Return the sums that `to_json` described."""
        return cls(
            int(tree["releases"]),
            ExactSum.from_json(tree["cost"]),
            ExactSum.from_json(tree["gaussian"]),
            {from_json(part): count for part, count in tree["others"]},
        )


@dataclass
class Account:
    """Budget and releases of one dataset.

    Attributes:
        reserved: Worst cases of reserved releases that are not in `past`, in order of reservation.
        committed: Realised costs of committed releases that are not in `past`.
        unit: Protected unit (`record`, `group`, `label`), or None if unknown.
        opened: Budget at the first release, if it differs from the current one. The budget at the first release
            determines the filter's order α.
        first: Worst case of the first release with a cost.
        past: Sums over committed releases.
        people: References to digests of protected and published records.
        linked: Accounts about the same people. Each release is charged to all of them.
        promised: For each δ, the largest ε of the budgets under which anything was reserved; None for no limit.
        tasks: Distinct tasks of the releases, in order of reservation.
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
        """Add a release at its worst case."""
        self.reserved[release_id] = worst_case
        self.promised[self.budget.delta] = _larger(self.budget.epsilon, self.promised.get(self.budget.delta, 0.0))
        if self.first is None and counts(worst_case):
            self.first, self.opened = worst_case, self.budget

    def finish(self, release_id: str, cost: Event) -> None:
        """Move a reserved release to the past, at its realised cost."""
        worst_case = self.reserved.pop(release_id)
        if counts(worst_case):
            assert self.first is not None
            self.past = self.past.plus(cost, self._filter(self.first))

    def link(self, names: Sequence[str], other: "Account") -> None:
        """Add the releases and promises of linked accounts.

        If the accounts have different filters, the promise ends: one of the filters could be chosen after looking at
        releases under the other.

        Args:
            names: Digests of the linked accounts.
            other: Any one of the linked accounts; all have the same sums.
        """
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
        """Return the ε at the budget's δ that holds for all past and future releases, or None if there is none.

        Lowering a budget after looking at releases does not lower the promise. A promise at a larger δ implies none at
        a smaller one. Accounts linked after they released may together exceed what each of them promised.
        """
        largest = self.budget.epsilon
        for delta, epsilon in self.promised.items():
            largest = _larger(largest, epsilon if delta <= self.budget.delta else None)
        return None if largest is None or self.total() > largest else largest

    def used(self) -> Event:
        """Return all costs as one composition, with open releases at their worst case."""
        return compose(self.past.event(), *self._open())

    def total(self, *further: Event) -> float:
        """Return the ε to compare with the budget after `further` releases, each at its worst case.

        The first release is priced separately, exactly or by its losses. From the second release on, the account's
        filter adds up costs. This is sound because the first worst case is public: if it alone exceeds the filter's
        limit, no release follows it, regardless of its realised cost; otherwise the filter covers it, too.
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
        """Check that releases name the account's budget, mode and unit.

        Raises:
            LedgerError: If budget, mode or unit differs from the account's. Without a budget, δ and unit may differ.
        """
        known = self.budget
        if known != budget and not (known.mode == budget.mode and known.epsilon is budget.epsilon is None):
            if known.mode != budget.mode:
                raise LedgerError(
                    "This account was opened for data of the other kind: public benchmarks or private records. Use "
                    "another ledger.account. Nothing was released."
                )
            raise LedgerError(
                f"The account has a budget of {known}, not of {budget}. Set ledger.epsilon and δ to the account's "
                "values, or change them with `terrine ledger --budget`. Nothing was released."
            )
        if budget.epsilon is not None and unit is not None and self.unit not in (None, unit):
            raise LedgerError(
                f"Releases of this account protect each {self.unit}, but this one protects each {unit}: their ε do not "
                f"add up. The unit is fixed by the first release about these people, and another account would refuse "
                f"them. Continue with privacy.unit={self.unit}. Nothing was released."
            )

    def check_all(self, worst_cases: Sequence[Event], noise_kind: str, subject: str | None = None) -> None:
        """Check that the budget allows these releases, one after the other.

        Args:
            worst_cases: Worst-case events of the releases.
            noise_kind: `secure` or `replay`.
            subject: Name of the releases in the error message.

        Raises:
            LedgerError: If noise is replayed in an account for releases.
            BudgetError: If the releases exceed the budget. The message states the remaining budget.
        """
        budget = self.budget
        if noise_kind == "replay" and budget.mode != "replay":
            raise LedgerError(
                "Replayed noise is not private, but this dataset is registered for releases. Use secure noise, or a "
                "separate ledger for experiments on public benchmarks. Nothing was released."
            )
        if budget.epsilon is None or (total := self.total(*worst_cases)) <= budget.epsilon:
            return
        left = self.left()
        error = BudgetError(
            f"{subject or ('This release' if len(worst_cases) == 1 else 'These releases')} may cost up to "
            f"ε={round_up(price(compose(*worst_cases), budget.delta)):g} and would bring the account to "
            f"ε={round_up(total):g} at δ={budget.delta:g} over all runs, past its budget of ε={budget.epsilon:g}. "
            f"Spent or reserved so far: ε={round_up(self.total()):g}. Left: one Gaussian release of up to ε={left:.4f} "
            "(exact costs do not add up linearly). Nothing was drawn and nothing was charged."
        )
        error.needs, error.left = total, left
        raise error

    def left(self, *linked: "Account") -> float | None:
        """Return the ε of the largest Gaussian release allowed here and by linked accounts; None without a budget."""
        rooms = [(mu, each) for each in (self, *linked) if (mu := each._mu_left()) is not None]
        if not rooms:
            return None
        mu, least = min(rooms, key=lambda room: room[0])
        return self.budget.epsilon if least is self and self._paid() is None else epsilon_of(mu, self.budget.delta)

    def _mu_left(self) -> float | None:
        """Return the μ of the largest Gaussian release still allowed, or None without a budget."""
        epsilon, delta, paid = self.budget.epsilon, self.budget.delta, self._paid()
        if epsilon is None:
            return None
        return mu_of(epsilon, delta) if paid is None else paid[0].mu_left(paid[1], epsilon, delta)

    def to_json(self) -> dict[str, Any]:
        """Return the account as JSON values."""

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
        """Return the account that `to_json` described."""
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
        """Return the filter and its sum of costs, or None if nothing has a cost."""
        first = self.first or next((worst for worst in self.reserved.values() if counts(worst)), None)
        if first is None:
            return None
        kept = self._filter(first)
        total = self._sum(self._open(), kept)
        if isinstance(kept, RenyiSum):
            total = max(total, kept.cost(first))
        return kept, total


def _larger(one: float | None, other: float | None) -> float | None:
    """Return the larger of two limits, or None if one is unlimited."""
    return None if one is None or other is None else max(one, other)


def check_together(
    accounts: Sequence[Account], worst_cases: Sequence[Event], noise_kind: str, subject: str | None = None
) -> None:
    """Check that an account and all accounts linked with it allow these releases.

    Args:
        accounts: The account, then those linked with it.
        worst_cases: See `Account.check_all`, which raises the same errors.
        noise_kind: See `Account.check_all`.
        subject: See `Account.check_all`.
    """
    own, *linked = accounts
    own.check_all(worst_cases, noise_kind, subject)
    for other in linked:
        try:
            other.check_all(worst_cases, noise_kind, subject)
        except BudgetError as error:
            raise BudgetError(
                "A linked account, which is about the same people, does not allow it (`terrine ledger`). " + str(error)
            ) from error
