"""Transactions on the ledger's rows: rows are verified when read and chained when added.

A transaction does not read all rows. It loads the snapshot sealed with the chain's head, checks that the row at the
head is the sealed one, verifies the chain from there, and checks each older row that it looks up. The cost of an
account therefore depends only on verified rows. `rows` verifies the whole chain.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from terrine.errors import LedgerError, SettingError
from terrine.privacy.ledger.account import Account
from terrine.privacy.ledger.chain import Head, Row, Tip, check_chain, check_row, row_after
from terrine.privacy.ledger.database import Database, Transaction
from terrine.privacy.ledger.people import PUBLIC, People, PeopleStore, mentioned, private_before, shared_people
from terrine.privacy.ledger.release_store import ReleaseStore
from terrine.privacy.ledger.snapshot import LedgerSnapshot

Result = TypeVar("Result")
_WITNESS = re.compile(r"(\d+) rows, head ([0-9a-f]{64})")


class LedgerTransaction:
    """Accounts and rows, with the exclusive right to add rows.

    Attributes:
        snapshot: Accounts after all rows, including those added in this transaction.

    Raises:
        LedgerError: If the end of the chain was changed.
    """

    def __init__(self, transaction: Transaction, key: bytes, tip: Tip) -> None:
        self._transaction = transaction
        self._key = key
        self.began_with, last = tip.read(), transaction.last()
        if self.began_with is None and last:
            raise tip.missing(last)
        head = self.began_with or Head.at(None, "")
        known = LedgerSnapshot.from_text(head.sums) if head.sums else None
        # Read from the row at the head on, or all rows if there is no valid snapshot.
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
        self.snapshot = LedgerSnapshot() if known is None else known
        for row in rows:
            self.snapshot.add(row)
        self._last = rows[-1] if rows else at_head
        self._is_news = known is None or bool(rows)

    def head(self) -> Head:
        """Return the current end of the chain."""
        if self.began_with is None or self._is_news:
            return Head.at(self._last, self.snapshot.to_text())
        return self.began_with

    def rows(self) -> list[Row]:
        """Return all rows in order, verified.

        Raises:
            LedgerError: If the chain is broken.
        """
        rows = self._transaction.rows()
        check_chain(rows, self._key)
        return rows

    def append(self, kind: str, dataset: str, release_id: str | None, body: Mapping[str, Any]) -> Row:
        """Append a row to the chain."""
        written = datetime.now(UTC).isoformat(timespec="seconds")
        row = row_after(
            self._last, self._key, kind=kind, dataset=dataset, release_id=release_id, body=body, written=written
        )
        self._transaction.append(row)
        self.snapshot.add(row)
        self._last, self._is_news = row, True
        return row

    def find(self, kind: str, release_id: str) -> Row | None:
        """Return the verified row of this kind about this release, or None."""
        return next(iter(self.verified(kind=kind, release_id=release_id)), None)

    def row(self, position: int) -> Row | None:
        """Return the verified row at this position, or None."""
        return next(iter(self.verified(first=position, last=position)), None)

    def end(self) -> tuple[int, str]:
        """Return position and HMAC of the last row."""
        head = Head.at(self._last, "")
        return head.count, head.mac

    def check_people(self, dataset: str, people: People, store: PeopleStore) -> None:
        """Check that records do not belong to another account, and can be recognised across editions.

        Args:
            dataset: The account, which may not be registered yet.
            people: Digests under the ledger's key.
            store: Stored digests of earlier runs.

        Raises:
            LedgerError: The message names the other account, the number of records and a remedy.
        """
        own = self.account(dataset)
        names = {dataset} if own is None else {dataset, *own.linked}
        for name, other in self.snapshot.accounts.items():
            if name in names:
                continue
            for file in dict.fromkeys(mention.file for mention in other.people):
                if common := shared_people(people, store.read(file)):
                    error = LedgerError(
                        f"{common:,} of these records were part of releases under another account, {name[:16]}: a "
                        "second account would be a second budget for the same people. Use that account "
                        "(ledger.account), or link both with `terrine ledger --link`. Nothing was released."
                    )
                    error.account = name
                    raise error
        if own is None or people.named:
            return
        for before, _ in mentioned(store, own.people, "taught", "tested"):
            if before.edition != people.edition:
                raise LedgerError(
                    f"This is edition {people.edition} of the data, but the account released about edition "
                    f"{before.edition}. Without ids, records cannot be recognised across editions. Set data.id or "
                    "data.group (tables), or add arrays of ids or groups (.npz). Nothing was released."
                )

    def check_publication(self, dataset: str, people: People, store: PeopleStore) -> None:
        """Check that no record to be published is protected by this account or a linked one.

        Raises:
            LedgerError: The message contains the number of records and the settings that changed.
        """
        if self.account(dataset) is None:
            return
        known = [mention for account in self.snapshot.together(dataset) for mention in account.people]
        refused, settings = private_before(people, store, known)
        if count := int(refused.sum()):
            total = int((people.sides == PUBLIC).sum())
            changed = ", ".join(sorted(settings))
            why = (
                f"These settings had other values in that run: {changed}. Restore them"
                if settings
                else "The settings are equal, so the data changed: records were renamed or moved"
                + (" (they have no ids)" if not people.named else "")
                + ". Restore the data"
            )
            raise LedgerError(
                f"{count:,} of the {total:,} records that this run would publish were private in a release of this "
                f"account, which protects them. {why}, or publish no records. Nothing was written, released or charged."
            )

    def account(self, dataset: str) -> Account | None:
        """Return the dataset's account, or None if it is not registered."""
        return self.snapshot.accounts.get(dataset)

    def require(self, dataset: str) -> Account:
        """Return the dataset's account.

        Raises:
            LedgerError: If the dataset has no account in this ledger.
        """
        account = self.account(dataset)
        if account is None:
            raise LedgerError(
                f"The dataset {dataset} is not registered in the ledger. Register it with its budget first."
            )
        return account

    def verified(self, **chosen: Any) -> list[Row]:
        """Return rows by position, kind or release (see `database.Transaction.rows`), each verified."""
        rows = self._transaction.rows(**chosen)
        for row in rows:
            check_row(row, self._key)
        return rows


class Transactions:
    """Runs transactions and stores the end of the chain.

    Args:
        database: Database of the rows.
        tip: Sealed file with the end of the chain.
        key: Key of the ledger.
    """

    def __init__(self, database: Database, tip: Tip, key: bytes) -> None:
        self._database = database
        self._tip = tip
        self._key = key

    def transact(self, work: Callable[[LedgerTransaction], Result]) -> Result:
        """Run `work` as the only writer, and commit the rows that it added.

        Args:
            work: Reads and appends rows without other side effects, since a serialisation failure repeats it.

        Raises:
            LedgerError: If the ledger is locked, damaged, truncated or was edited. Nothing was added.
        """

        def verified(opened: Transaction) -> tuple[Result, Head, Head | None]:
            transaction = LedgerTransaction(opened, self._key, self._tip)
            if transaction.began_with is None:
                # Written before any row is committed, so rows without a head are always a sign of damage.
                self._tip.advance(transaction.head())
            return work(transaction), transaction.head(), transaction.began_with

        result, head, before = self._database.transact(verified)
        if head != before:
            self._tip.advance(head)
        return result


def witness(transactions: Transactions) -> str:
    """Return a line that identifies the current end of the ledger, to keep elsewhere; meaningless without the key."""
    head = transactions.transact(lambda transaction: transaction.head())
    return f"Terrine ledger, {datetime.now(UTC):%Y-%m-%d}: {head.count} rows, head {head.mac}"


def verify(transactions: Transactions, releases: ReleaseStore, people: PeopleStore, witness: str = "") -> int:
    """Check all rows, the head with its snapshot, and all stored releases. Return the number of rows.

    Args:
        transactions: Transactions of the ledger.
        releases: Its stored releases.
        people: Its stored digests of records.
        witness: Lines that `witness` returned earlier, which the ledger must continue.

    Raises:
        LedgerError: At the first row, seal or file that differs.
        SettingError: If `witness` contains no witness.
    """
    seen = [(int(count), mac) for count, mac in _WITNESS.findall(witness)]
    if witness and not seen:
        raise SettingError(f"{witness[:80]!r} is not a line printed by `terrine ledger --verify`.")

    def work(transaction: LedgerTransaction) -> list[Row]:
        rows = transaction.rows()
        for count, mac in seen:
            if count > len(rows) or (count and rows[count - 1].mac != mac):
                raise LedgerError(
                    f"The ledger does not continue the one of the witness, or is an old copy: it has {len(rows)} rows, "
                    f"and the witness saw {count}. Nothing was released. Restore the latest copy."
                )
        for account in transaction.snapshot.accounts.values():
            for mention in account.people:
                people.read(mention.file)
        if LedgerSnapshot.of(rows) != transaction.snapshot:
            raise LedgerError(
                "The snapshot in the ledger's head differs from the sum of its rows. Nothing was released. Restore "
                "both from the same backup."
            )
        return rows

    files = releases.files()  # before the rows, so that each was reserved
    rows = transactions.transact(work)
    noise = {row.release_id: str(row.content["noise"]) for row in rows if row.kind == "reserve"}
    for row in rows:
        if row.kind == "commit" and row.release_id is not None:
            stored = releases.read(row.release_id, noise[row.release_id])
            if stored is None or stored.digest != row.content["digest"]:
                raise LedgerError(
                    f"The stored release {releases.path(row.release_id)} is missing or differs from row "
                    f"{row.position}. Restore it from a backup."
                )
    _refuse_unknown(releases, files, rows)
    return len(rows)


def refuse_older(transaction: LedgerTransaction, releases: ReleaseStore, files: list[str]) -> None:
    """Raise LedgerError if a stored release has no reservation, because the ledger is then an old copy.

    Comparing numbers of files is fast. All reservations are read only if the numbers differ.

    Args:
        transaction: The current transaction.
        releases: Stored releases.
        files: Names of their files, read before the transaction started.

    Raises:
        LedgerError: A release is unknown; the message names it.
    """
    unfinished = {
        releases.path(name).name for account in transaction.snapshot.accounts.values() for name in account.reserved
    }
    if len(files) > transaction.snapshot.stored + len(unfinished and unfinished.intersection(files)):
        _refuse_unknown(releases, files, transaction.verified(kind="reserve"))


def _refuse_unknown(releases: ReleaseStore, files: list[str], rows: Iterable[Row]) -> None:
    """Raise LedgerError for the file of a release that no row reserved."""
    known = {f"{row.release_id}.npz" for row in rows if row.kind == "reserve"}
    if unknown := sorted(set(files) - known):
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise LedgerError(
            f"The ledger lacks the stored release {releases.folder / unknown[0]}{others}: it is an old copy or was "
            "emptied, and lacks what was spent since. Nothing was released. Restore the latest copy."
        )
