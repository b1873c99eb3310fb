"""Registry of the ledgers through which a site released data.

A ledger refuses data about which another of its accounts has released, but it cannot see ledgers with another address,
key or folder. A small private database, whose location no setting of a run changes, records which ledger claimed which
data and how far each ledger has advanced, so that an old copy is recognised. The registry protects against mistakes and
against users who choose settings, but not against an operator who deletes the registry.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from terrine.errors import LedgerError
from terrine.files import private_folder
from terrine.privacy.ledger.people import People, is_shared
from terrine.privacy.ledger.site_key import keyed_digest, load_or_create_key

_TABLES = (
    "CREATE TABLE IF NOT EXISTS claims (ledger TEXT, address TEXT, data TEXT, record TEXT, "
    "PRIMARY KEY (ledger, data, record)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS records ON claims (record)",
    "CREATE TABLE IF NOT EXISTS ends (ledger TEXT PRIMARY KEY, position INTEGER, mac TEXT)",
)


class _Claim:
    """Keyed digests of a sketch (`People.sketch`), in hexadecimal, named by the digest of all of them."""

    def __init__(self, people: People, key: bytes) -> None:
        texts = (int(digest).to_bytes(8, "big") for digest in people.sketch())
        self.records = sorted(
            hashlib.blake2b(text, digest_size=8, key=key, person=b"terrine record").hexdigest() for text in texts
        )
        self.name = keyed_digest(key, "terrine data", "".join(self.records).encode())
        self.distinct = people.distinct


@dataclass(frozen=True)
class SiteRegistry:
    """Claims of all ledgers of a site on data.

    Attributes:
        folder: Folder of the database, created if missing.
    """

    folder: Path

    def claim(self, ledger: str, address: str, people: People) -> tuple[int, str] | None:
        """Claim data for a ledger, unless it has claimed them already.

        Args:
            ledger: HMAC of the ledger's first row, which identifies it even after it is moved.
            address: Address of the ledger, for error messages of other ledgers.
            people: Digests of the records.

        Returns:
            Position and HMAC of the last row of this ledger that the registry has recorded, or None.

        Raises:
            LedgerError: If another ledger has claimed the data, or the claims cannot be read.
        """
        private_folder(self.folder)
        data = _Claim(people, load_or_create_key(self.folder / "key"))
        with self._open() as claims:
            if self._is_new(claims, ledger, data):
                rows = [(ledger, address, data.name, record) for record in data.records]
                claims.executemany("INSERT INTO claims VALUES (?, ?, ?, ?)", rows)
            seen = claims.execute("SELECT position, mac FROM ends WHERE ledger = ?", (ledger,)).fetchone()
        return None if seen is None else (int(seen[0]), str(seen[1]))

    def check(self, ledger: str, people: People) -> None:
        """Check data like `claim`, without claiming them. `ledger` is "" for a ledger that does not exist yet."""
        if not (self.folder / "site.db").is_file():
            return
        data = _Claim(people, load_or_create_key(self.folder / "key"))
        with self._open() as claims:
            self._is_new(claims, ledger, data)

    def saw(self, ledger: str, position: int, mac: str) -> None:
        """Record the last row of a ledger."""
        with self._open() as claims:
            claims.execute(
                "INSERT INTO ends VALUES (?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET position = excluded.position, "
                "mac = excluded.mac WHERE excluded.position > position",
                (ledger, position, mac),
            )

    def _is_new(self, claims: sqlite3.Connection, ledger: str, data: _Claim) -> bool:
        """Return whether a ledger has yet to claim the data. Raises LedgerError if another ledger has claimed them."""
        known = "SELECT 1 FROM claims WHERE ledger = ? AND data = ?"
        if claims.execute(known, (ledger, data.name)).fetchone() is not None:
            return False
        claims.execute("CREATE TEMP TABLE own (record TEXT PRIMARY KEY) WITHOUT ROWID")
        claims.executemany("INSERT INTO own VALUES (?)", [(record,) for record in data.records])
        found = claims.execute(
            "SELECT ledger, address, data, count(*), "
            "(SELECT count(*) FROM claims AS every WHERE every.ledger = claims.ledger AND every.data = claims.data) "
            "FROM own CROSS JOIN claims USING (record) WHERE ledger != ? GROUP BY ledger, data",
            (ledger,),
        )
        for _, address, _, common, size in found.fetchall():
            if is_shared(common, size, len(data.records), data.distinct):
                raise LedgerError(
                    f"Some of these records were part of releases through another ledger of this site, {address}. The "
                    "total ε of both would be unknown. Use that ledger (ledger.url, ledger.key, ledger.store). Nothing "
                    "was released."
                )
        return True

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        path = self.folder / "site.db"
        try:
            path.touch(0o600)
            with contextlib.closing(sqlite3.connect(path, timeout=60.0, isolation_level=None)) as claims:
                claims.execute("PRAGMA journal_mode = WAL")
                claims.execute("BEGIN IMMEDIATE")
                for table in _TABLES:
                    claims.execute(table)
                yield claims
                claims.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(
                f"The site registry {path} cannot be used ({error}). Nothing was released. If it is damaged, restore "
                "it from a backup."
            ) from error
