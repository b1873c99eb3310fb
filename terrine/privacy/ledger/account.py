"""What a dataset may spend and has spent: the ledger's arithmetic, on rows alone.

Costs are events; a release that is reserved and not committed counts with its worst case. Two questions have two
answers. *May this be released?* is answered by a filter (`filters`), fixed by the first release for ever: the budget
holds however releases are chosen after looking at earlier ones, so it is the guarantee of an account. *What was used?*
is the price of all events together as if they had been planned: never more than the budget, and what is printed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from terrine.errors import BudgetError, LedgerError
from terrine.privacy.accounting.events import Event, compose, counts, from_json
from terrine.privacy.accounting.filters import Filter, RenyiSum, filter_for
from terrine.privacy.accounting.gaussian import epsilon_of, round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.chain import Row


@dataclass(frozen=True)
class Budget:
    """What may be spent on a dataset over all runs.

    Attributes:
        dataset: Its keyed fingerprint.
        epsilon: The budget; None records and never refuses.
        delta: δ of the budget.
        mode: `release`, or `replay` where replayed noise is allowed.
    """

    dataset: str
    epsilon: float | None
    delta: float
    mode: str

    def __str__(self) -> str:
        limit = "no limit" if self.epsilon is None else f"ε={self.epsilon:g}"
        return f"{limit} at δ={self.delta:g}, mode {self.mode!r}"


@dataclass(frozen=True)
class Account:
    """One dataset's budget and releases.

    Attributes:
        budget: The budget in force.
        reserved: Worst case by release, in the order of reservation.
        committed: Realised cost by release.
        unit: What its releases protect (`record`, `group`, `label`), where that was said when it was opened.
        opened: The budget that the first release was reserved under, where that is not the one in force: it decides the
            filter's order for ever.
    """

    budget: Budget
    reserved: dict[str, Event]
    committed: dict[str, Event]
    unit: str | None = None
    opened: Budget | None = None

    @classmethod
    def of(cls, dataset: str, rows: Sequence[Row]) -> Self | None:
        """The account that these rows describe, None where the dataset is not registered."""
        budget: Budget | None = None
        unit: str | None = None
        opened: Budget | None = None
        reserved: dict[str, Event] = {}
        committed: dict[str, Event] = {}
        for row in rows:
            if row.dataset != dataset:
                continue
            content = row.content
            if row.kind == "register":
                budget = Budget(dataset, content["epsilon"], content["delta"], content["mode"])
                unit = content.get("unit")
            elif row.kind == "budget" and budget is not None:
                budget = Budget(dataset, content["epsilon"], content["delta"], budget.mode)
            elif row.kind == "reserve" and row.release_id is not None:
                reserved[row.release_id] = from_json(content["event"])
                if opened is None and counts(reserved[row.release_id]):
                    opened = budget
            elif row.kind == "commit" and row.release_id is not None:
                committed[row.release_id] = from_json(content["event"])
            elif row.kind == "adopt" and content["from"] != dataset:
                # Made by an earlier version under another account of the same people: it counts here from now on.
                reserved[content["of"]] = committed[content["of"]] = from_json(content["event"])
                if opened is None and counts(reserved[content["of"]]):
                    opened = budget
        return None if budget is None else cls(budget, reserved, committed, unit, opened)

    def events(self) -> list[Event]:
        """One event a release: what it cost, or its worst case while that is not known."""
        return [self.committed.get(release_id, worst_case) for release_id, worst_case in self.reserved.items()]

    def total(self, *further: Event) -> float:
        """The ε that a budget is compared with if `further` releases are made after each other, each at its worst.

        The first release of all is priced as it is, exactly or by its losses; from the second on the account's filter
        adds up. That is sound because what the first may cost at most is public: where it alone passes the filter's
        limit nothing follows it, whatever it turns out to cost, and otherwise the filter covers it, too.
        """
        delta = self.budget.delta
        paid = [(worst, self.committed.get(name, worst)) for name, worst in self.reserved.items()]
        paid = [(worst, cost) for worst, cost in [*paid, *((event, event) for event in further)] if counts(worst)]
        if not paid:
            return 0.0
        if len(paid) == 1:
            return price(paid[0][1], delta)
        kept = self._filter(paid[0][0])
        total = kept.epsilon(math.fsum(kept.cost(cost) for _, cost in paid), delta)
        if isinstance(kept, RenyiSum):
            total = max(total, kept.epsilon(kept.cost(paid[0][0]), delta))
        return total

    def check(self, worst_case: Event, noise_kind: str) -> None:
        """Refuse a release that the budget does not allow, see `check_all`."""
        self.check_all([worst_case], noise_kind)

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
        if budget.epsilon is None:
            return
        if not self.total(*worst_cases) <= budget.epsilon:
            raise self.refusal(subject or ("This release" if len(worst_cases) == 1 else "These releases"), worst_cases)

    def left(self) -> float | None:
        """The ε by itself, at the budget's δ, of the largest Gaussian release that is still allowed; None without a
        budget."""
        epsilon, delta = self.budget.epsilon, self.budget.delta
        if epsilon is None:
            return None
        paid = self._paid()
        return epsilon if paid is None else epsilon_of(paid[0].mu_left(paid[1], epsilon, delta), delta)

    def refusal(self, subject: str, worst_cases: Sequence[Event]) -> BudgetError:
        """Return the error for releases, called `subject`, that pass the budget: what they cost, and what is left."""
        budget = self.budget
        assert budget.epsilon is not None
        total = self.total(*worst_cases)
        alone = "itself" if len(worst_cases) == 1 else "themselves"
        error = BudgetError(
            f"{subject} may cost up to ε={round_up(price(compose(*worst_cases), budget.delta)):g} by {alone} and "
            f"would bring the account to ε={round_up(total):g} at δ={budget.delta:g} over all runs, past its "
            f"budget of ε={budget.epsilon:g}. Spent or reserved so far: ε={round_up(self.total()):g}; "
            f"{self._left(budget.epsilon)}. Nothing was drawn and nothing was charged."
        )
        error.needs, error.left = total, self.left()
        return error

    def _filter(self, first: Event) -> Filter:
        opened = self.opened or self.budget
        return filter_for(first, opened.epsilon, opened.delta)

    def _paid(self) -> tuple[Filter, float] | None:
        """The filter and the sum of costs in it, None where nothing was paid for yet."""
        paid = [worst for worst in self.reserved.values() if counts(worst)]
        if not paid:
            return None
        kept = self._filter(paid[0])
        total = math.fsum(kept.cost(cost) for cost in self.events())
        if isinstance(kept, RenyiSum):
            total = max(total, kept.cost(paid[0]))
        return kept, total

    def _left(self, epsilon: float) -> str:
        """What a single further release may cost, as the end of a sentence."""
        paid = self._paid()
        if paid is None:
            return f"left is room for one more release of ε={epsilon:.4f} by itself, the whole budget"
        return paid[0].room(paid[1], epsilon, self.budget.delta)
