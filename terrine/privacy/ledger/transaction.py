"""The ledger's rows within a transaction: what is read is verified, what is added is chained.

A transaction need not read all rows. It takes up the sums of all rows up to the chain's head, which are sealed with
the head, checks that the row at the head is the one that was sealed, walks the chain from there, and checks by itself
each older row that it looks up. So what accounts have spent never rests on a row that was not verified when it was
added up. `rows` walks the whole chain.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from terrine.errors import LedgerError
from terrine.privacy.ledger.account import Account
from terrine.privacy.ledger.chain import Head, Row, Tip, check_chain, check_row, row_after
from terrine.privacy.ledger.database import Database, Transaction
from terrine.privacy.ledger.people import PUBLIC, People, PeopleStore, mentioned, private_before, shared_people
from terrine.privacy.ledger.standing import Standing

Result = TypeVar("Result")


class LedgerTransaction:
    """How accounts stand, and rows, with the exclusive right to add to them.

    Attributes:
        standing: After all rows, those added in this transaction included.

    Raises:
        LedgerError: the end of the chain is not as it was written.
    """

    def __init__(self, transaction: Transaction, key: bytes, tip: Tip) -> None:
        self._transaction = transaction
        self._key = key
        self.began_with, last = tip.read(), transaction.last()
        if self.began_with is None and last:
            raise tip.missing(last)
        head = self.began_with or Head.at(None, "")
        known = Standing.from_text(head.sums) if head.sums else None
        # From the row at the head on; all of them where it is not known what they add up to.
        rows = transaction.rows(first=1 if known is None else head.count)
        at_head = next((row for row in rows if row.position == head.count), None)
        if known is None:
            check_chain(rows, key)
        tip.check(head, at_head, last)
        if known is not None:
            if at_head is not None:
                check_row(at_head, key)
                rows = rows[1:]
            check_chain(rows, key, at_head)
        self.standing = Standing() if known is None else known
        for row in rows:
            self.standing.add(row)
        self._last = rows[-1] if rows else at_head
        self._is_news = known is None or bool(rows)

    def head(self) -> Head:
        """The end of the chain as it is by now."""
        if self.began_with is None or self._is_news:
            return Head.at(self._last, self.standing.to_text())
        return self.began_with

    def rows(self) -> list[Row]:
        """All rows in order, verified.

        Raises:
            LedgerError: the chain is broken.
        """
        rows = self._transaction.rows()
        check_chain(rows, self._key)
        return rows

    def append(self, kind: str, dataset: str, release_id: str | None, body: Mapping[str, Any]) -> Row:
        """Add a row to the end of the chain."""
        written = datetime.now(UTC).isoformat(timespec="seconds")
        row = row_after(
            self._last, self._key, kind=kind, dataset=dataset, release_id=release_id, body=body, written=written
        )
        self._transaction.append(row)
        self.standing.add(row)
        self._last, self._is_news = row, True
        return row

    def find(self, kind: str, release_id: str) -> Row | None:
        """The row of this kind about this release, verified, if there is one."""
        return next(iter(self._verified(kind=kind, release_id=release_id)), None)

    def row(self, position: int) -> Row | None:
        """The row at this position, verified, if there is one."""
        return next(iter(self._verified(first=position, last=position)), None)

    def end(self) -> tuple[int, str]:
        """Position and HMAC of the last row."""
        head = Head.at(self._last, "")
        return head.count, head.mac

    def of_kind(self, kind: str, until: int | None = None) -> list[Row]:
        """The rows of this kind, each verified by itself, up to a position."""
        return self._verified(kind=kind, last=until)

    def check_people(self, dataset: str, people: People, store: PeopleStore) -> None:
        """Refuse records that belong to another account, or that nothing tells from those of an earlier edition.

        Args:
            dataset: The account, which may not be registered yet.
            people: Digests under the ledger's key.

        Raises:
            LedgerError: the message says which account, how many records, and what to do.
        """
        own = self.account(dataset)
        names = {dataset} if own is None else {dataset, *own.linked}
        for name, other in self.standing.accounts.items():
            if name in names:
                continue
            for file in dict.fromkeys(mention.file for mention in other.people):
                if common := shared_people(people, store.read(file)):
                    raise LedgerError(
                        f"{common:,} of these records were released about under another account, {name[:16]} (`terrine "
                        "ledger` prints its name): a second account would be a second budget for the same people. "
                        "Use that account (ledger.account), or add the two up: `terrine ledger --link`. Nothing was "
                        "released."
                    )
        if own is None or people.named:
            return
        for before, _ in mentioned(store, own.people, "taught", "tested"):
            if before.edition != people.edition:
                raise LedgerError(
                    f"This is edition {people.edition} of the data, and the account released about edition "
                    f"{before.edition}. Records without ids cannot be told apart between editions. Set data.id or "
                    "data.group (of a table), or add arrays of ids or groups (to an .npz file). Nothing was released."
                )

    def check_publication(self, dataset: str, people: People, store: PeopleStore) -> None:
        """Refuse to publish records that the account, or one that is linked with it, protects.

        Raises:
            LedgerError: the message says how many, and which settings changed.
        """
        if self.account(dataset) is None:
            return
        known = [mention for account in self.standing.together(dataset) for mention in account.people]
        refused, settings = private_before(people, store, known)
        if count := int(refused.sum()):
            total = int((people.sides == PUBLIC).sum())
            changed = ", ".join(sorted(settings))
            why = (
                f"These settings had other values in that run: {changed}. Set them back"
                if settings
                else "The settings are the same, so the data changed: records were renamed or moved to other places"
                + (" (they have no ids)" if not people.named else "")
                + ". Put the data back as they were"
            )
            raise LedgerError(
                f"{count:,} of the {total:,} records that this run would publish were private in a release of this "
                f"account, which promises them privacy. {why}, or publish no records. Nothing was written, released or "
                "charged."
            )

    def account(self, dataset: str) -> Account | None:
        """The dataset's account, if it is registered."""
        return self.standing.accounts.get(dataset)

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

    def _verified(self, **chosen: Any) -> list[Row]:
        rows = self._transaction.rows(**chosen)
        for row in rows:
            check_row(row, self._key)
        return rows


class Transactions:
    """Opens a transaction for one piece of work at a time, and remembers where the chain ended.

    Args:
        tip: Where the end of the chain is kept apart from them.
    """

    def __init__(self, database: Database, tip: Tip, key: bytes) -> None:
        self._database = database
        self._tip = tip
        self._key = key

    def transact(self, work: Callable[[LedgerTransaction], Result]) -> Result:
        """Run `work` as the only writer, and commit what it added.

        Args:
            work: Reads and appends rows and does nothing else; a serialisation failure runs it again.

        Raises:
            LedgerError: the ledger is locked, damaged, cut short or was changed by hand; nothing was added.
        """

        def verified(opened: Transaction) -> tuple[Result, Head, Head | None]:
            transaction = LedgerTransaction(opened, self._key, self._tip)
            if transaction.began_with is None:
                # Before any row can be committed, so that rows without a head are always a sign of damage.
                self._tip.advance(transaction.head())
            return work(transaction), transaction.head(), transaction.began_with

        result, head, before = self._database.transact(verified)
        if head != before:
            self._tip.advance(head)
        return result
