"""The ledger's rows: appended, never changed, and chained with a keyed hash.

Every row carries an HMAC over its content and the HMAC of the row before it. Without the key nobody can change, insert,
reorder or delete a row without breaking the chain. What a chain alone cannot show is a missing end; so its length and
last HMAC are also kept apart from the rows, in a sealed head file.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from terrine.errors import LedgerError
from terrine.files import atomic_file
from terrine.privacy.ledger.identity import canonical_json, keyed_digest
from terrine.privacy.ledger.locks import locked

_GENESIS = "0" * 64


@dataclass(frozen=True)
class Row:
    """One entry of the ledger.

    Attributes:
        position: 1 for the first row.
        kind: `register`, `budget`, `reserve`, `commit`, or `adopt` (an identity for a release of an earlier version).
        dataset: The dataset it is about.
        release_id: The release it is about, for `reserve`, `commit` and `adopt`.
        body: What it says, as canonical JSON.
        written: When, UTC, ISO 8601.
        previous: The HMAC of the row before.
        mac: The HMAC of this row.
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


def append_to(
    rows: Sequence[Row],
    key: bytes,
    *,
    kind: str,
    dataset: str,
    release_id: str | None,
    body: Mapping[str, Any],
    written: str,
) -> Row:
    """The row that follows `rows`, with its place in the chain."""
    content: dict[str, Any] = {
        "position": len(rows) + 1,
        "kind": kind,
        "dataset": dataset,
        "release_id": release_id,
        "body": canonical_json(body).decode(),
        "written": written,
        "previous": rows[-1].mac if rows else _GENESIS,
    }
    return Row(**content, mac=_mac(key, content))


def check_chain(rows: Sequence[Row], key: bytes) -> None:
    """Walk the whole chain.

    Raises:
        LedgerError: the first row that was changed, inserted, moved or follows a deleted one.
    """
    previous = _GENESIS
    for position, row in enumerate(rows, start=1):
        content = asdict(row)
        mac = content.pop("mac")
        if row.position != position:
            raise LedgerError(
                f"The ledger lacks row {position}: it was deleted by hand. Nothing was released; restore the ledger "
                "from a backup."
            )
        if row.previous != previous or mac != _mac(key, content):
            raise LedgerError(
                f"Row {position} of the ledger was changed by hand, or written under another key. Nothing was "
                "released; restore the ledger and its key from a backup."
            )
        previous = row.mac


class Tip:
    """How long the chain was when it was last extended, kept in a sealed file apart from the rows.

    The file is written after the rows are committed, so a crash in between leaves it one step behind, never ahead.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self._path = path
        self._key = key

    def read(self) -> tuple[int, str] | None:
        """Length and last HMAC of the chain that must exist at least; None before the first transaction.

        Raises:
            LedgerError: the file was changed by hand.
        """
        try:
            head = json.loads(self._path.read_bytes())
            count, mac, seal = int(head["count"]), str(head["mac"]), str(head["seal"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged() from error
        if seal != self._seal(count, mac):
            raise self._damaged()
        return count, mac

    def check(self, rows: Sequence[Row]) -> None:
        """Refuse rows that end before the chain that is remembered; begin to remember an empty one.

        Called by the only writer, so that no row is missing because another process has just written it.

        Raises:
            LedgerError: rows are missing at the end, these rows are of another ledger, or the head is gone.
        """
        known = self.read()
        if known is None:
            if rows:
                raise LedgerError(
                    f"The ledger's head {self._path} is missing, although the ledger has {len(rows)} rows: it was "
                    "deleted or the folder of releases was moved. Nothing was released; restore the folder."
                )
            # Before any row can be committed, so that rows without a head are always a sign of damage.
            self.advance(rows)
            return
        count, mac = known
        if len(rows) < count:
            raise LedgerError(
                f"The ledger ends after row {len(rows)}, but {count} rows were written: its end was cut off, or an old "
                "copy was put in its place. Nothing was released; restore the latest copy."
            )
        if count and rows[count - 1].mac != mac:
            raise LedgerError(
                f"Row {count} of the ledger is not the one that {self._path} remembers: the two do not belong "
                "together. Nothing was released; restore them from the same backup."
            )

    def advance(self, rows: Sequence[Row]) -> None:
        """Remember the end of `rows`, which are committed, unless a longer chain is remembered already."""
        with locked(self._path.with_suffix(".lock"), patience=30.0):
            known = self.read()
            if known is None or known[0] < len(rows):
                count, mac = len(rows), rows[-1].mac if rows else _GENESIS
                head = {"count": count, "mac": mac, "seal": self._seal(count, mac)}
                with atomic_file(self._path, owner_only=True) as file:
                    file.write(canonical_json(head))

    def _seal(self, count: int, mac: str) -> str:
        return keyed_digest(self._key, "terrine ledger head", str(count).encode(), mac.encode())

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"The ledger's head {os.fspath(self._path)} was changed by hand, or written under another key. Nothing was "
            "released; restore it from a backup."
        )


def _mac(key: bytes, content: Mapping[str, Any]) -> str:
    return keyed_digest(key, "terrine ledger row", canonical_json(content))
