"""State of a party in one SQLite file: reports, facts, and files of the teacher party's uploads.

Everything is stored once and never changed: a second write of the same thing returns what is there. So a process that
is killed at any moment continues from what it stored, and repeats what it said before.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrine.errors import ArtefactError
from terrine.files import private_folder

DATABASE = "party.db"
_TABLES = (
    "collaborations (collaboration TEXT PRIMARY KEY, terms TEXT)",
    "acceptances (collaboration TEXT, party TEXT, signature TEXT, PRIMARY KEY (collaboration, party))",
    "reports (collaboration TEXT, round INTEGER, party TEXT, sha256 TEXT, body BLOB, transcript BLOB, opened BLOB,"
    " receipt TEXT, PRIMARY KEY (collaboration, round, party))",
    "facts (collaboration TEXT, round INTEGER, name TEXT, value BLOB, PRIMARY KEY (collaboration, round, name))",
)
WHOLE = -1
"""The round of facts about a whole collaboration."""


class StoredReport(NamedTuple):
    """An upload without its body."""

    party: str
    sha256: str
    transcript: bytes
    opened: bytes
    receipt: dict[str, str]


class Store:
    """The database of one party, for one process.

    Args:
        folder: The party's state folder, which is created.

    Raises:
        ArtefactError: The database is damaged.
    """

    def __init__(self, folder: Path) -> None:
        private_folder(folder)
        self.path = folder / DATABASE
        self.lock = threading.RLock()
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        try:
            self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=30)
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
                self._connection.execute(f"PRAGMA {pragma}")
            for table in _TABLES:
                self._connection.execute(f"CREATE TABLE IF NOT EXISTS {table} WITHOUT ROWID")
        except sqlite3.DatabaseError as error:
            raise ArtefactError(f"{self.path} is damaged ({error}). Restore it from a backup.") from error

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all writes of the block one transaction, and let no other thread in."""
        with self.lock:
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._commit()

    def _commit(self) -> None:
        self._connection.execute("COMMIT")

    def _read(self, query: str, *values: Any) -> list[Any]:
        with self.lock:
            return self._connection.execute(query, values).fetchall()

    def _write(self, query: str, *values: Any) -> None:
        with self.together():
            self._connection.execute(query, values)

    def register(self, collaboration: str, terms: dict[str, Any]) -> None:
        """Store the terms of a collaboration that the party takes part in."""
        self._write("INSERT OR IGNORE INTO collaborations VALUES (?, ?)", collaboration, json.dumps(terms))

    def terms(self) -> dict[str, dict[str, Any]]:
        """Return the terms of all collaborations by digest."""
        return {key: json.loads(text) for key, text in self._read("SELECT collaboration, terms FROM collaborations")}

    def accept(self, collaboration: str, party: str, signature: str) -> None:
        """Store that a party signed the terms."""
        self._write("INSERT OR IGNORE INTO acceptances VALUES (?, ?, ?)", collaboration, party, signature)

    def accepted(self, collaboration: str) -> dict[str, str]:
        """Return the signatures of the terms by party."""
        return dict(self._read("SELECT party, signature FROM acceptances WHERE collaboration = ?", collaboration))

    def add_report(self, collaboration: str, number: int, report: StoredReport, body: bytes) -> StoredReport:
        """Store a report unless the party has one in this round; return the stored one."""
        with self.together():
            self._write(
                "INSERT OR IGNORE INTO reports VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                *(collaboration, number, report.party, report.sha256, body),
                *(report.transcript, report.opened, json.dumps(report.receipt)),
            )
            stored = self.report(collaboration, number, report.party)
        assert stored is not None
        return stored

    def report(self, collaboration: str, number: int, party: str) -> StoredReport | None:
        """Return a party's report in a round."""
        return next(iter(self.reports(collaboration, number, party)), None)

    def reports(self, collaboration: str, number: int, party: str | None = None) -> list[StoredReport]:
        """Return the reports of a round, or only that of one party."""
        rows = self._read(
            "SELECT party, sha256, transcript, opened, receipt FROM reports WHERE collaboration = ? AND round = ?"
            " AND party = coalesce(?, party)",
            *(collaboration, number, party),
        )
        return [
            StoredReport(party, sha256, transcript, opened, json.loads(receipt))
            for party, sha256, transcript, opened, receipt in rows
        ]

    def bodies(self, collaboration: str, number: int, parties: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the bodies of these parties' reports, one at a time."""
        for party in parties:
            query = "SELECT body FROM reports WHERE collaboration = ? AND round = ? AND party = ?"
            ((body,),) = self._read(query, collaboration, number, party)
            yield party, body

    def facts(self, collaboration: str, number: int = WHOLE) -> StoredFacts:
        """Return the facts about a round, or about the whole collaboration."""
        return StoredFacts(self, collaboration, number)

    def clear(self, collaboration: str) -> None:
        """Remove shares and the facts of all rounds after a release is complete; receipts stay."""
        with self.together():
            self._write("UPDATE reports SET body = x'', opened = x'' WHERE collaboration = ?", collaboration)
            self._write(
                "DELETE FROM facts WHERE collaboration = ? AND round != ? AND name NOT LIKE 'verdict/%'",
                *(collaboration, WHOLE),
            )


@dataclass(frozen=True)
class StoredFacts:
    """Facts about a round: `terrine.collaboration.protocol.guardian_round.Facts`."""

    store: Store
    collaboration: str
    number: int

    def get(self, name: str, /) -> bytes | None:
        """Return what is stored under a name."""
        query = "SELECT value FROM facts WHERE collaboration = ? AND round = ? AND name = ?"
        rows = self.store._read(query, self.collaboration, self.number, name)
        return bytes(rows[0][0]) if rows else None

    def setdefault(self, name: str, value: bytes, /) -> bytes:
        """Store the value unless something is stored; return what is stored."""
        with self.store.together():
            query = "INSERT OR IGNORE INTO facts VALUES (?, ?, ?, ?)"
            self.store._write(query, self.collaboration, self.number, name, value)
            stored = self.get(name)
        assert stored is not None
        return stored

    def named(self, prefix: str) -> dict[str, bytes]:
        """Return the facts whose names begin with a prefix, by the rest of their names."""
        query = "SELECT name, value FROM facts WHERE collaboration = ? AND round = ? AND substr(name, 1, ?) = ?"
        rows = self.store._read(query, self.collaboration, self.number, len(prefix), prefix)
        return {name[len(prefix) :]: bytes(value) for name, value in rows}

    def value(self, name: str) -> Any:
        """Return a fact's JSON value, or None."""
        found = self.get(name)
        return None if found is None else json.loads(found)

    def keep(self, name: str, value: Any) -> Any:
        """Store a JSON value unless one is stored; return the stored one."""
        return json.loads(self.setdefault(name, json.dumps(value, sort_keys=True).encode()))

    def array(self, name: str) -> np.ndarray | None:
        """Return a fact that is a one-dimensional array of int64, or None."""
        found = self.get(name)
        return None if found is None else np.frombuffer(found, "<i8")
