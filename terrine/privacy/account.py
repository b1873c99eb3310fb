"""What a dataset may spend and has spent: the ledger's arithmetic, on rows alone.

Costs are events. Events of all runs compose exactly where all are Gaussian, and by the best data-independent bound
otherwise; a release that is reserved and not committed counts with its worst case.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from terrine.errors import BudgetError, LedgerError
from terrine.privacy.chain import Row
from terrine.privacy.events import Event, UnsupportedEventError, compose, from_json
from terrine.privacy.gaussian import epsilon_of, mu_of, mu_squared, round_up
from terrine.privacy.renyi import epsilon_of_event

_ROUNDING = 1e-9


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


def price(event: Event, delta: float) -> float:
    """ε of `event` at `delta`, without looking at data: exact where it is Gaussian, the best known bound otherwise."""
    try:
        return epsilon_of(math.sqrt(mu_squared(event)), delta)
    except UnsupportedEventError:
        return epsilon_of_event(event, delta)


def covers(reservation: Event, event: Event, delta: float) -> bool:
    """Whether a reservation pays for `event`, up to the rounding of two different sums."""
    try:
        # Compared as μ², because below some noise ε is 0 at this δ for cheap and dear events alike.
        return mu_squared(event) <= mu_squared(reservation) * (1 + _ROUNDING)
    except UnsupportedEventError:
        return price(event, delta) <= price(reservation, delta) * (1 + _ROUNDING)


@dataclass(frozen=True)
class Account:
    """One dataset's budget and releases.

    Attributes:
        budget: The budget in force.
        reserved: Worst case by release, in the order of reservation.
        committed: Realised cost by release.
        unit: What its releases protect (`record`, `group`, `label`), where that was said when it was opened.
    """

    budget: Budget
    reserved: dict[str, Event]
    committed: dict[str, Event]
    unit: str | None = None

    @classmethod
    def of(cls, dataset: str, rows: Sequence[Row]) -> Self | None:
        """The account that these rows describe, None where the dataset is not registered."""
        budget: Budget | None = None
        unit: str | None = None
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
            elif row.kind == "commit" and row.release_id is not None:
                committed[row.release_id] = from_json(content["event"])
            elif row.kind == "adopt" and content["from"] != dataset:
                # Made by an earlier version under another account of the same people: it counts here from now on.
                reserved[content["of"]] = committed[content["of"]] = from_json(content["event"])
        return None if budget is None else cls(budget, reserved, committed, unit)

    def events(self) -> list[Event]:
        """One event a release: what it cost, or its worst case while that is not known."""
        return [self.committed.get(release_id, worst_case) for release_id, worst_case in self.reserved.items()]

    def check(self, worst_case: Event, noise_kind: str) -> None:
        """Refuse a release that the budget does not allow.

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
        spent = compose(*self.events())
        total = price(compose(spent, worst_case), budget.delta)
        if not total <= budget.epsilon:
            raise BudgetError(
                f"This release may cost up to ε={round_up(price(worst_case, budget.delta)):g} by itself and would "
                f"bring the dataset to ε={round_up(total):g} at δ={budget.delta:g} over all runs, past its budget of "
                f"ε={budget.epsilon:g}. Spent or reserved so far: ε={round_up(price(spent, budget.delta)):g}; "
                f"{self._left(spent, budget.epsilon)}. Nothing was drawn and nothing was charged."
            )

    def _left(self, spent: Event, epsilon: float) -> str:
        """What a single further release may cost, as the end of a sentence."""
        delta = self.budget.delta
        try:
            room = mu_of(epsilon, delta) ** 2 - mu_squared(spent)
        except UnsupportedEventError:
            return f"what is left is at least ε={max(0.0, epsilon - price(spent, delta)):.4f} for a release without δ"
        left = epsilon_of(math.sqrt(room), delta) if room > 0 else 0.0
        return f"left is room for one more release of ε={left:.4f} by itself (exact costs do not add up linearly)"
