"""Rows of the ledger: append-only, chained by a keyed hash.

Each row has an HMAC of its content and of the previous row's HMAC. Without the key, no row can be changed, inserted,
moved or deleted undetected. A chain alone does not show that its end is missing, so its length and last HMAC are also
stored in a sealed head file, together with a snapshot of all accounts.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from terrine.errors import LedgerError
from terrine.files import atomic_file
from terrine.locks import locked
from terrine.privacy.ledger.site_key import canonical_json, keyed_digest

_GENESIS = "0" * 64


@dataclass(frozen=True)
class Row:
    """One row of the ledger.

    Attributes:
        position: 1 for the first row.
        kind: `register`, `budget`, `reserve`, `commit`, `people` (published records), `link` (linked accounts),
            `request` (for an approval) or `decision` (by a person).
        dataset: Digest of the account's name.
        release_id: Identity of the release, for `reserve` and `commit`.
        body: Content as canonical JSON.
        written: Time in UTC, ISO 8601.
        previous: HMAC of the previous row.
        mac: HMAC of this row.
    """

    position: int
    kind: str
    dataset: str
    release_id: str | None
    body: str
    written: str
    previous: str
    mac: str

    @property
    def content(self) -> dict[str, Any]:
        """The row's content as a dictionary."""
        return dict(json.loads(self.body))


def row_after(
    last: Row | None,
    key: bytes,
    *,
    kind: str,
    dataset: str,
    release_id: str | None,
    body: Mapping[str, Any],
    written: str,
) -> Row:
    """Return the row that follows `last` in the chain."""
    content: dict[str, Any] = {
        "position": last.position + 1 if last else 1,
        "kind": kind,
        "dataset": dataset,
        "release_id": release_id,
        "body": canonical_json(body).decode(),
        "written": written,
        "previous": last.mac if last else _GENESIS,
    }
    return Row(**content, mac=_mac(key, content))


def check_row(row: Row, key: bytes) -> None:
    """Check the HMAC of one row.

    Raises:
        LedgerError: If the row was changed, or written with another key.
    """
    content = asdict(row)
    if content.pop("mac") != _mac(key, content):
        raise _changed(row)


def check_chain(rows: Sequence[Row], key: bytes, last: Row | None = None) -> None:
    """Verify rows that follow the already verified row `last`, or all rows from the first if it is None.

    Raises:
        LedgerError: At the first row that was changed, inserted or moved, or that follows a deleted one.
    """
    position, previous = (last.position, last.mac) if last else (0, _GENESIS)
    for row in rows:
        position += 1
        if row.position != position:
            raise LedgerError(
                f"The ledger lacks row {position}, deleted by hand. Nothing was released. Restore the ledger from a "
                "backup."
            )
        if row.previous != previous:
            raise _changed(row)
        check_row(row, key)
        previous = row.mac


def _changed(row: Row) -> LedgerError:
    return LedgerError(
        f"Row {row.position} of the ledger was changed by hand, or written under another key. Nothing was released. "
        "Restore the ledger and its key from a backup."
    )


@dataclass(frozen=True)
class Head:
    """End of the chain of rows, as the sealed head file records it.

    Attributes:
        count: Number of rows.
        mac: HMAC of the last row.
        sums: Snapshot of all accounts as text (`LedgerSnapshot.to_text`); empty if unknown.
    """

    count: int
    mac: str
    sums: str = ""

    @classmethod
    def at(cls, last: Row | None, sums: str) -> Self:
        """Return the head after `last`."""
        return cls(last.position, last.mac, sums) if last else cls(0, _GENESIS, sums)


class Tip:
    """Sealed file with the head of the chain, separate from the rows.

    The head is written after the rows are committed, so a crash leaves the head behind the rows, never ahead.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self._path = path
        self._key = key

    def read(self) -> Head | None:
        """Return the head that the chain must at least reach, or None before the first transaction.

        Raises:
            LedgerError: If the file was changed.
        """
        try:
            tree = json.loads(self._path.read_bytes())
            head = Head(int(tree["count"]), str(tree["mac"]), str(tree["sums"]))
            seals = [str(tree["seal"]), str(tree["sums_seal"])]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged() from error
        if seals != self._seals(head):
            raise self._damaged()
        return head

    def missing(self, count: int) -> LedgerError:
        """Return the error to raise if there are `count` rows but no head."""
        return LedgerError(
            f"The ledger's head {self._path} is missing, although the ledger has {count} rows. Nothing was released. "
            "Restore the folder of releases."
        )

    def check(self, head: Head, found: Row | None, last: int) -> None:
        """Check that the chain reaches its head. Only the process that holds the write lock may call this.

        Args:
            head: Tip of the chain, as returned by `read`.
            found: Row at the head's position, or None.
            last: Position of the last row.

        Raises:
            LedgerError: If rows are missing at the end, or belong to another ledger.
        """
        if head.count and not last:
            raise LedgerError(
                f"The ledger is empty, but the head in {self._path.parent} has {head.count} rows: they were cut off, "
                "or ledger.url names another database. Nothing was released. Restore the latest copy; a separate "
                "ledger needs a separate ledger.store."
            )
        if last < head.count:
            raise LedgerError(
                f"The ledger ends after row {last}, but {head.count} rows were written: its end was cut off or "
                "replaced by an old copy. Nothing was released. Restore the latest copy."
            )
        if head.count and found is None:
            raise LedgerError(
                f"The ledger lacks row {head.count}, deleted by hand. Nothing was released. Restore the ledger from a "
                "backup."
            )
        if found is not None and found.mac != head.mac:
            raise LedgerError(
                f"Row {head.count} of the ledger differs from the one in {self._path}. Nothing was released. Restore "
                "both from the same backup."
            )

    def advance(self, head: Head) -> None:
        """Store a head whose rows are committed, unless the head of a longer chain is already stored."""
        with ledger_lock(self._path.with_suffix(".lock"), patience=30.0):
            known = self.read()
            if known is None or (known.count <= head.count and known != head):
                seal, sums_seal = self._seals(head)
                tree = {"count": head.count, "mac": head.mac, "seal": seal, "sums": head.sums, "sums_seal": sums_seal}
                with atomic_file(self._path, owner_only=True, alone=True) as file:
                    file.write(canonical_json(tree))

    def _seals(self, head: Head) -> list[str]:
        """Return the seals of the head and of its sums; the second is empty if the sums are unknown."""
        own = [str(head.count).encode(), head.mac.encode()]
        seal = keyed_digest(self._key, "terrine ledger head", *own)
        sums = keyed_digest(self._key, "terrine ledger sums", *own, head.sums.encode()) if head.sums else ""
        return [seal, sums]

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"The ledger's head {os.fspath(self._path)} was changed by hand, or written under another key. Nothing was "
            "released. Restore it from a backup."
        )


@contextmanager
def ledger_lock(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock at `path`, see `terrine.locks.locked`.

    Raises:
        LedgerError: If another process holds it for more than `patience` seconds, or its folder is not writable.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(path, patience))
        except TimeoutError as error:
            raise LedgerError(f"{error}. Wait for it, or stop it. Nothing was released.") from error
        except OSError as error:
            raise LedgerError(f"The lock {path} cannot be taken: {error.strerror}. Nothing was released.") from error
        yield


def _mac(key: bytes, content: Mapping[str, Any]) -> str:
    return keyed_digest(key, "terrine ledger row", canonical_json(content))
