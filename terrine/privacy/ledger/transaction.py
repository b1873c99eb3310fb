"""The ledger's rows within a transaction: what is read is verified, what is added is chained.

A transaction need not read all rows. It takes up the sums of all rows up to the chain's head, which are sealed with
the head, checks that the row at the head is the one that was sealed, walks the chain from there, and checks by itself
each older row that it looks up. So what accounts have spent never rests on a row that was not verified when it was
added up. `rows` walks the whole chain.
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
    """How accounts stand, and rows, with the exclusive right to add to them.

    Attributes:
        snapshot: After all rows, those added in this transaction included.

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
        known = LedgerSnapshot.from_text(head.sums) if head.sums else None
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
        self.snapshot = LedgerSnapshot() if known is None else known
        for row in rows:
            self.snapshot.add(row)
        self._last = rows[-1] if rows else at_head
        self._is_news = known is None or bool(rows)

    def head(self) -> Head:
        """The end of the chain as it is by now."""
        if self.began_with is None or self._is_news:
            return Head.at(self._last, self.snapshot.to_text())
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
        self.snapshot.add(row)
        self._last, self._is_news = row, True
        return row

    def find(self, kind: str, release_id: str) -> Row | None:
        """The row of this kind about this release, verified, if there is one."""
        return next(iter(self.verified(kind=kind, release_id=release_id)), None)

    def row(self, position: int) -> Row | None:
        """The row at this position, verified, if there is one."""
        return next(iter(self.verified(first=position, last=position)), None)

    def end(self) -> tuple[int, str]:
        """Position and HMAC of the last row."""
        head = Head.at(self._last, "")
        return head.count, head.mac

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
        for name, other in self.snapshot.accounts.items():
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
        known = [mention for account in self.snapshot.together(dataset) for mention in account.people]
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
        return self.snapshot.accounts.get(dataset)

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

    def verified(self, **chosen: Any) -> list[Row]:
        """Return rows by position, kind or release (`database.Transaction.rows`), each verified by itself."""
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


def witness(transactions: Transactions) -> str:
    """Return one line about how far the ledger goes now, to be kept elsewhere: it says nothing without the key."""
    head = transactions.transact(lambda transaction: transaction.head())
    return f"Terrine ledger, {datetime.now(UTC):%Y-%m-%d}: {head.count} rows, head {head.mac}"


def verify(transactions: Transactions, releases: ReleaseStore, people: PeopleStore, witness: str = "") -> int:
    """Check every row, the head, what it says that the rows add up to, and every release; return how many rows
    there are.

    Args:
        witness: Lines that `witness` returned earlier, which the ledger must go on from.

    Raises:
        LedgerError: the first thing that is not as it was written.
        SettingError: a witness that is none.
    """
    said = [(int(count), mac) for count, mac in _WITNESS.findall(witness)]
    if witness and not said:
        raise SettingError(f"{witness[:80]!r} is no line that `terrine ledger --verify` printed.")

    def work(transaction: LedgerTransaction) -> list[Row]:
        rows = transaction.rows()
        for count, mac in said:
            if count > len(rows) or (count and rows[count - 1].mac != mac):
                raise LedgerError(
                    f"The ledger is not the one that the witness saw, or an old copy of it: {count} rows were "
                    f"written then, and {len(rows)} are there, of which none has that end. Nothing was released; "
                    "restore the latest copy."
                )
        for account in transaction.snapshot.accounts.values():
            for mention in account.people:
                people.read(mention.file)
        if LedgerSnapshot.of(rows) != transaction.snapshot:
            raise LedgerError(
                "What the ledger's head says that accounts have spent is not what its rows add up to. Nothing was "
                "released; restore both from the same backup."
            )
        return rows

    there = releases.files()  # before the rows: each of them was reserved by then
    rows = transactions.transact(work)
    noise = {row.release_id: str(row.content["noise"]) for row in rows if row.kind == "reserve"}
    for row in rows:
        if row.kind == "commit" and row.release_id is not None:
            stored = releases.read(row.release_id, noise[row.release_id])
            if stored is None or stored.digest != row.content["digest"]:
                raise LedgerError(
                    f"The stored release {releases.path(row.release_id)} is missing or not the one that row "
                    f"{row.position} committed: restore it from a backup."
                )
    _refuse_unknown(releases, there, rows)
    return len(rows)


def refuse_older(transaction: LedgerTransaction, releases: ReleaseStore, files: list[str]) -> None:
    """Refuse where releases are stored that were not reserved: the ledger is older than the store.

    That is so where there are more than were committed or are open; which they are takes longer to say.

    Args:
        files: Names of the files there, read before the transaction began.

    Raises:
        LedgerError: naming a release that the ledger does not know.
    """
    unfinished = {
        releases.path(name).name for account in transaction.snapshot.accounts.values() for name in account.reserved
    }
    if len(files) > transaction.snapshot.stored + len(unfinished and unfinished.intersection(files)):
        _refuse_unknown(releases, files, transaction.verified(kind="reserve"))


def _refuse_unknown(releases: ReleaseStore, files: list[str], rows: Iterable[Row]) -> None:
    """Refuse files of releases that no row reserved."""
    known = {f"{row.release_id}.npz" for row in rows if row.kind == "reserve"}
    if unknown := sorted(set(files) - known):
        others = f", nor of {len(unknown) - 1} others" if len(unknown) > 1 else ""
        raise LedgerError(
            f"The release {releases.folder / unknown[0]} is stored, and the ledger knows nothing of "
            f"it{others}: the ledger is an old copy, or was emptied, and does not know what was spent since. Nothing "
            "was released; restore the latest copy of the ledger."
        )
