"""A snapshot of all accounts after a number of rows: running totals, so that a release need not read every row.

It is stored, sealed, with the chain's head (`chain.Tip`). A transaction starts from it and adds the newer rows one by
one. If it was made by other code, all rows are verified and added up again. Totals are not computed in SQL: they are
exact fractions, and a budget may rest only on rows whose seals were checked.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

from terrine.privacy import accounting
from terrine.privacy.accounting.events import from_json
from terrine.privacy.ledger.account import Account, Budget
from terrine.privacy.ledger.chain import Row
from terrine.privacy.ledger.people import Mention
from terrine.privacy.ledger.site_key import canonical_json
from terrine.privacy.ledger.task import Task


@dataclass
class LedgerSnapshot:
    """All accounts, and what else a transaction must know of all rows.

    Attributes:
        accounts: By the dataset that they are about, in the order of registration.
        stored: How many releases were committed.
    """

    accounts: dict[str, Account] = field(default_factory=dict)
    stored: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Self:
        """How accounts stand after these rows, which are all that there are."""
        snapshot = cls()
        for row in rows:
            snapshot.add(row)
        return snapshot

    def add(self, row: Row) -> None:
        """Take the next row into account."""
        content, release = row.content, row.release_id
        match row.kind:
            case "register":
                budget = Budget(row.dataset, content["epsilon"], content["delta"], content["mode"])
                self.accounts[row.dataset] = Account(budget, {}, {}, content.get("unit"))
            case "budget":
                account = self.accounts[row.dataset]
                account.budget = Budget(row.dataset, content["epsilon"], content["delta"], account.budget.mode)
            case "reserve" if release is not None:
                for account in self.together(row.dataset):
                    account.reserve(release, from_json(content["event"]))
                self._mention(row.dataset, content.get("people"))
                if (task := task_in(content)) is not None and task not in self.accounts[row.dataset].tasks:
                    self.accounts[row.dataset].tasks.append(task)
            case "people":
                self._mention(row.dataset, content["people"])
            case "commit" if release is not None:
                self.stored += 1
                for account in self.together(row.dataset):
                    account.finish(release, from_json(content["event"]))
            case "link":
                self._link(row.dataset, content["with"])

    def _mention(self, dataset: str, people: list[str] | None) -> None:
        known = self.accounts[dataset].people
        if people is not None and (mention := Mention(*people)) not in known:
            known.append(mention)

    def together(self, dataset: str) -> list[Account]:
        """The account of a dataset, and those that add up with it."""
        own = self.accounts[dataset]
        return [own, *(self.accounts[name] for name in own.linked)]

    def _link(self, one: str, other: str) -> None:
        groups = [[name, *self.accounts[name].linked] for name in (one, other)]
        sums = [Account.from_json(self.accounts[name].to_json()) for name in (one, other)]
        for number, group in enumerate(groups):
            for name in group:
                self.accounts[name].link(groups[1 - number], sums[1 - number])

    def to_text(self) -> str:
        """All of it, with the code that made it, as JSON."""
        tree = {
            "code": _code(),
            "stored": self.stored,
            "accounts": [[name, account.to_json()] for name, account in self.accounts.items()],
        }
        return canonical_json(tree).decode()

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """What `to_text` wrote; None where other code made it, so that its sums may be others today."""
        tree: dict[str, Any] = json.loads(text)
        if tree["code"] != _code():
            return None
        accounts = {name: Account.from_json(account) for name, account in tree["accounts"]}
        return cls(accounts, tree["stored"])


def task_in(content: Mapping[str, Any]) -> Task | None:
    """Return what a `reserve` row says that its release is about, or None."""
    return Task.from_json(content["edition"], content["task"]) if "task" in content else None


@cache
def _code() -> str:
    """A digest of the code by which events are priced and added up."""
    here = Path(__file__)
    files = [*sorted(Path(accounting.__file__).parent.glob("*.py")), here, here.with_name("account.py")]
    return hashlib.sha256(b"\n".join(file.read_bytes() for file in files)).hexdigest()
