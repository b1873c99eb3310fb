"""Whether a ledger is all that was written, and the latest of it: its rows, its head, and the releases beside it.

What comes from another time as a whole, rows and head and releases alike, only an outside witness can tell: a line of
`witness` that is kept elsewhere.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from terrine.errors import LedgerError, SettingError
from terrine.privacy.ledger.chain import Row
from terrine.privacy.ledger.people import PeopleStore
from terrine.privacy.ledger.release_store import ReleaseStore
from terrine.privacy.ledger.standing import Standing
from terrine.privacy.ledger.transaction import LedgerTransaction, Transactions

_WITNESS = re.compile(r"(\d+) rows, head ([0-9a-f]{64})")


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
        for account in transaction.standing.accounts.values():
            for mention in account.people:
                people.read(mention.file)
        if Standing.of(rows) != transaction.standing:
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
        releases.path(name).name for account in transaction.standing.accounts.values() for name in account.reserved
    }
    if len(files) > transaction.standing.stored + len(unfinished and unfinished.intersection(files)):
        _refuse_unknown(releases, files, transaction.of_kind("reserve"))


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
