"""State of a party in one SQLite file: bytes by collaboration, round and name.

A fact is stored once and never changed: a second write of the same name returns what is stored. So a process that is
killed at any moment continues from what it stored, and repeats what it sent before.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrine.errors import ArtefactError
from terrine.files import private_folder

DATABASE = "party.db"
WHOLE = -1
"""Round number under which facts about a whole collaboration are stored."""
_TABLE = """CREATE TABLE IF NOT EXISTS facts (
    collaboration TEXT, round INTEGER, name TEXT, value BLOB, PRIMARY KEY (collaboration, round, name)
) WITHOUT ROWID"""


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
        self._lock = threading.RLock()
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        try:
            self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=30)
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
                self._connection.execute(f"PRAGMA {pragma}")
            self._connection.execute(_TABLE)
        except sqlite3.DatabaseError as error:
            raise ArtefactError(f"{self.path} is damaged ({error}). Restore it from a backup.") from error

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all writes of the block one transaction; other threads wait."""
        with self._lock:
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

    def query(self, statement: str, *values: Any) -> list[Any]:
        """Run an SQL statement and return its rows."""
        with self._lock:
            return self._connection.execute(statement, values).fetchall()

    def facts(self, collaboration: str, number: int = WHOLE) -> StoredFacts:
        """Return the facts about a round, or about the whole collaboration."""
        return StoredFacts(self, collaboration, number)

    def register(self, collaboration: str, terms: dict[str, Any]) -> None:
        """Store the terms of a collaboration in which the party takes part."""
        self.facts(collaboration).keep("terms", terms)

    def terms(self) -> dict[str, dict[str, Any]]:
        """Return the terms of all collaborations, by digest."""
        rows = self.query("SELECT collaboration, value FROM facts WHERE round = ? AND name = 'terms'", WHOLE)
        return {collaboration: json.loads(value) for collaboration, value in rows}

    def clear(self, collaboration: str) -> None:
        """Erase the shares and the facts of all rounds of a complete release; receipts and verdicts stay."""
        with self.transaction():
            self.query(
                "DELETE FROM facts WHERE collaboration = ? AND round != ? AND name NOT LIKE 'receipt/%'"
                " AND name NOT LIKE 'verdict/%'",
                *(collaboration, WHOLE),
            )


@dataclass(frozen=True)
class StoredFacts:
    """Facts about a round, an implementation of `terrine.collaboration.protocol.guardian_round.Facts`."""

    store: Store
    collaboration: str
    number: int

    def get(self, name: str, /) -> bytes | None:
        """Return the value of a fact, or None."""
        statement = "SELECT value FROM facts WHERE collaboration = ? AND round = ? AND name = ?"
        rows = self.store.query(statement, self.collaboration, self.number, name)
        return bytes(rows[0][0]) if rows else None

    def setdefault(self, name: str, value: bytes, /) -> bytes:
        """Store the value unless one is stored; return the stored one."""
        with self.store.transaction():
            statement = "INSERT OR IGNORE INTO facts VALUES (?, ?, ?, ?) RETURNING value"
            added = self.store.query(statement, self.collaboration, self.number, name, value)
            stored = value if added else self.get(name)
        assert stored is not None
        return stored

    def named(self, prefix: str) -> dict[str, bytes]:
        """Return the facts whose names begin with a prefix, by the part of the name after the prefix."""
        statement = "SELECT name, value FROM facts WHERE collaboration = ? AND round = ? AND name > ? AND name < ?"
        rows = self.store.query(statement, self.collaboration, self.number, prefix, prefix + "~")
        return {name[len(prefix) :]: bytes(value) for name, value in rows}

    def value(self, name: str) -> Any:
        """Return a fact's JSON value, or None."""
        found = self.get(name)
        return None if found is None else json.loads(found)

    def keep(self, name: str, value: Any) -> Any:
        """Store a JSON value unless one is stored; return the stored one."""
        return json.loads(self.setdefault(name, json.dumps(value, sort_keys=True).encode()))
