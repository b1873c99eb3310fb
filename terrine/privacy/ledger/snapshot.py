"""Snapshot of all accounts after a number of rows, so that a release need not read every row.

The snapshot is sealed together with the chain's head (`chain.Tip`). A transaction starts from it and adds the newer
rows. A snapshot by another code version is ignored: all rows are then verified and added up again. Totals are not
computed in SQL: they are exact fractions, and a budget may depend only on rows whose seals were checked.
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
    """All accounts, and the number of committed releases.

    Attributes:
        accounts: Accounts by dataset, in order of registration.
        stored: Number of committed releases.
    """

    accounts: dict[str, Account] = field(default_factory=dict)
    stored: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Self:
        """Return the snapshot after all rows."""
        snapshot = cls()
        for row in rows:
            snapshot.add(row)
        return snapshot

    def add(self, row: Row) -> None:
        """Update the snapshot with the next row of the ledger."""
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
        """Return the account of a dataset and those linked with it."""
        own = self.accounts[dataset]
        return [own, *(self.accounts[name] for name in own.linked)]

    def _link(self, one: str, other: str) -> None:
        groups = [[name, *self.accounts[name].linked] for name in (one, other)]
        sums = [Account.from_json(self.accounts[name].to_json()) for name in (one, other)]
        for number, group in enumerate(groups):
            for name in group:
                self.accounts[name].link(groups[1 - number], sums[1 - number])

    def to_text(self) -> str:
        """Return the snapshot as JSON, with a digest of the code that made it."""
        tree = {
            "code": _code(),
            "stored": self.stored,
            "accounts": [[name, account.to_json()] for name, account in self.accounts.items()],
        }
        return canonical_json(tree).decode()

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Return the snapshot that `to_text` wrote, or None if a different code version wrote it."""
        tree: dict[str, Any] = json.loads(text)
        if tree["code"] != _code():
            return None
        accounts = {name: Account.from_json(account) for name, account in tree["accounts"]}
        return cls(accounts, tree["stored"])


def task_in(content: Mapping[str, Any]) -> Task | None:
    """Return the task in the content of a `reserve` row, or None."""
    return Task.from_json(content["edition"], content["task"]) if "task" in content else None


@cache
def _code() -> str:
    """Return a digest of the code that prices and adds up events."""
    here = Path(__file__)
    files = [*sorted(Path(accounting.__file__).parent.glob("*.py")), here, here.with_name("account.py")]
    return hashlib.sha256(b"\n".join(file.read_bytes() for file in files)).hexdigest()
