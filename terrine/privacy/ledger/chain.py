"""The ledger's rows: appended, never changed, and chained with a keyed hash.

Every row carries an HMAC over its content and the HMAC of the row before it. Without the key nobody can change, insert,
reorder or delete a row without breaking the chain. What a chain alone cannot show is a missing end; so its length and
last HMAC are also kept apart from the rows, in a sealed head file, and beside them what the rows up to there add up to.
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
    """One entry of the ledger.

    Attributes:
        position: 1 for the first row.
        kind: `register`, `budget`, `reserve`, `commit`, `people` (records that are published), or `link` (accounts
            that add up).
        release_id: The release it is about, for `reserve` and `commit`.
        body: What it says, as canonical JSON.
        written: When, UTC, ISO 8601.
        previous: The HMAC of the row before.
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
        """`body` as a dictionary."""
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
    """The row that follows `last`, with its place in the chain."""
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
    """Check one row by itself.

    Raises:
        LedgerError: it was changed, or written under another key.
    """
    content = asdict(row)
    if content.pop("mac") != _mac(key, content):
        raise _changed(row)


def check_chain(rows: Sequence[Row], key: bytes, last: Row | None = None) -> None:
    """Walk the chain from the row after `last`, which is known to be good; without it from the first.

    Raises:
        LedgerError: the first row that was changed, inserted, moved or follows a deleted one.
    """
    position, previous = (last.position, last.mac) if last else (0, _GENESIS)
    for row in rows:
        position += 1
        if row.position != position:
            raise LedgerError(
                f"The ledger lacks row {position}: it was deleted by hand. Nothing was released; restore the ledger "
                "from a backup."
            )
        if row.previous != previous:
            raise _changed(row)
        check_row(row, key)
        previous = row.mac


def _changed(row: Row) -> LedgerError:
    return LedgerError(
        f"Row {row.position} of the ledger was changed by hand, or written under another key. Nothing was released; "
        "restore the ledger and its key from a backup."
    )


@dataclass(frozen=True)
class Head:
    """The end of the chain.

    Attributes:
        count: How many rows there are up to it.
        mac: The HMAC of the last of them.
        sums: What they add up to (`snapshot.LedgerSnapshot.to_text`); empty where that is not known.
    """

    count: int
    mac: str
    sums: str = ""

    @classmethod
    def at(cls, last: Row | None, sums: str) -> Self:
        """The head after `last`."""
        return cls(last.position, last.mac, sums) if last else cls(0, _GENESIS, sums)


class Tip:
    """How long the chain was when it was last extended, kept in a sealed file apart from the rows.

    The file is written after the rows are committed, so a crash in between leaves it one step behind, never ahead.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self._path = path
        self._key = key

    def read(self) -> Head | None:
        """The end of the chain that must exist at least; None before the first transaction.

        Raises:
            LedgerError: the file was changed by hand.
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
        """The error for rows without a head."""
        return LedgerError(
            f"The ledger's head {self._path} is missing, although the ledger has {count} rows: it was deleted or the "
            "folder of releases was moved. Nothing was released; restore the folder."
        )

    def check(self, head: Head, found: Row | None, last: int) -> None:
        """Check that the chain goes as far as its head says.

        Called by the only writer, so that no row is missing because another process has just written it.

        Args:
            head: What `read` returned.
            found: The row at its place, if there is one; None where it has none.
            last: The place of the last row that there is.

        Raises:
            LedgerError: rows are missing at the end, or these rows are of another ledger.
        """
        if head.count and not last:
            raise LedgerError(
                f"The ledger is empty, but {head.count} rows were written to the one of {self._path.parent}: they were "
                "cut off, or ledger.url names another database. Nothing was released. Restore the latest copy; a "
                "ledger of its own has a folder of its own (ledger.store)."
            )
        if last < head.count:
            raise LedgerError(
                f"The ledger ends after row {last}, but {head.count} rows were written: its end was cut off, or an old "
                "copy was put in its place. Nothing was released; restore the latest copy."
            )
        if head.count and found is None:
            raise LedgerError(
                f"The ledger lacks row {head.count}: it was deleted by hand. Nothing was released; restore the ledger "
                "from a backup."
            )
        if found is not None and found.mac != head.mac:
            raise LedgerError(
                f"Row {head.count} of the ledger is not the one that {self._path} remembers: the two do not belong "
                "together. Nothing was released; restore them from the same backup."
            )

    def advance(self, head: Head) -> None:
        """Remember a head whose rows are committed, unless a longer chain is remembered already."""
        with ledger_lock(self._path.with_suffix(".lock"), patience=30.0):
            known = self.read()
            if known is None or (known.count <= head.count and known != head):
                seal, sums_seal = self._seals(head)
                tree = {"count": head.count, "mac": head.mac, "seal": seal, "sums": head.sums, "sums_seal": sums_seal}
                with atomic_file(self._path, owner_only=True, alone=True) as file:
                    file.write(canonical_json(tree))

    def _seals(self, head: Head) -> list[str]:
        """Return the seals of the head and of its sums, which the first head does not have."""
        own = [str(head.count).encode(), head.mac.encode()]
        seal = keyed_digest(self._key, "terrine ledger head", *own)
        sums = keyed_digest(self._key, "terrine ledger sums", *own, head.sums.encode()) if head.sums else ""
        return [seal, sums]

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"The ledger's head {os.fspath(self._path)} was changed by hand, or written under another key. Nothing was "
            "released; restore it from a backup."
        )


@contextmanager
def ledger_lock(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock at `path`, see `terrine.locks.locked`.

    Raises:
        LedgerError: another holder kept it for longer than `patience` seconds, or its folder is not writable.
    """
    with ExitStack() as held:
        try:
            held.enter_context(locked(path, patience))
        except TimeoutError as error:
            raise LedgerError(f"{error}: wait for it, or end it. Nothing was released.") from error
        except OSError as error:
            raise LedgerError(f"The lock {path} cannot be taken: {error.strerror}. Nothing was released.") from error
        yield


def _mac(key: bytes, content: Mapping[str, Any]) -> str:
    return keyed_digest(key, "terrine ledger row", canonical_json(content))
