"""The ledger's rows within a transaction: verified before they are read, chained as they are added."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from terrine.errors import LedgerError
from terrine.privacy.ledger.account import Account
from terrine.privacy.ledger.chain import Row, Tip, append_to, check_chain
from terrine.privacy.ledger.database import Database, Transaction

Result = TypeVar("Result")


class LedgerTransaction:
    """All rows, verified, with the exclusive right to add to them.

    Raises:
        LedgerError: the chain is broken.
    """

    def __init__(self, transaction: Transaction, key: bytes) -> None:
        self._transaction = transaction
        self._key = key
        self.rows = transaction.rows()
        check_chain(self.rows, key)

    def append(self, kind: str, dataset: str, release_id: str | None, body: Mapping[str, Any]) -> Row:
        """Add a row to the end of the chain."""
        written = datetime.now(UTC).isoformat(timespec="seconds")
        row = append_to(
            self.rows, self._key, kind=kind, dataset=dataset, release_id=release_id, body=body, written=written
        )
        self._transaction.append(row)
        self.rows.append(row)
        return row

    def find(self, kind: str, release_id: str) -> Row | None:
        """The row of this kind about this release, if there is one."""
        return next((row for row in self.rows if row.kind == kind and row.release_id == release_id), None)

    def account(self, dataset: str) -> Account | None:
        """The dataset's account, if it is registered."""
        return Account.of(dataset, self.rows)

    def require(self, dataset: str) -> Account:
        """The dataset's account.

        Raises:
            LedgerError: it is not registered.
        """
        account = self.account(dataset)
        if account is None:
            raise LedgerError(
                f"The ledger knows no dataset {dataset}: register it with its budget before anything is released about "
                "it."
            )
        return account


class Transactions:
    """Opens a transaction for one piece of work at a time, and remembers where the chain ended.

    Args:
        database: Where the rows are.
        tip: Where the end of the chain is kept apart from them.
        key: The site's key.
    """

    def __init__(self, database: Database, tip: Tip, key: bytes) -> None:
        self._database = database
        self._tip = tip
        self._key = key

    def transact(self, work: Callable[[LedgerTransaction], Result]) -> Result:
        """Run `work` on the verified rows as the only writer, and commit what it added.

        Args:
            work: Reads and appends rows and does nothing else; a serialisation failure runs it again.

        Raises:
            LedgerError: the ledger is locked, damaged, cut short or was changed by hand; nothing was added.
        """

        def verified(opened: Transaction) -> tuple[Result, list[Row]]:
            transaction = LedgerTransaction(opened, self._key)
            self._tip.check(transaction.rows)
            return work(transaction), transaction.rows

        result, rows = self._database.transact(verified)
        self._tip.advance(rows)
        return result
