"""A site's memory of which ledger data were released through.

A ledger refuses data under a second account of its own. Another ledger, by another address, key or folder, knows
nothing of the first; so a small database that no setting of a run names keeps who claimed which data, and how far each
ledger went, so that a copy of it that was made before is no second ledger. It is private.
Whoever may delete files of the site may delete it, too: it is there against mistakes and against those who may choose
settings, not against the site itself.
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
    """Keyed digests of a sketch of people, in hexadecimal, and a digest of all of them as its name."""

    def __init__(self, people: People, key: bytes) -> None:
        texts = (int(digest).to_bytes(8, "big") for digest in people.sketch())
        self.records = sorted(
            hashlib.blake2b(text, digest_size=8, key=key, person=b"terrine record").hexdigest() for text in texts
        )
        self.name = keyed_digest(key, "terrine data", "".join(self.records).encode())
        self.distinct = people.distinct


@dataclass(frozen=True)
class SiteRegistry:
    """The claims of all ledgers of a site on data.

    Attributes:
        folder: Where they are kept; made when it is missing.
    """

    folder: Path

    def claim(self, ledger: str, address: str, people: People) -> tuple[int, str] | None:
        """Claim data for a ledger, unless they are claimed for it.

        Args:
            ledger: Which one, wherever it lies by now.
            address: Where it lies, for the error.
            people: Digests of the records.

        Returns:
            Position and HMAC of the row that the ledger was last seen to end with; None where it was not seen.

        Raises:
            LedgerError: they were released about through another ledger, or the claims cannot be read.
        """
        private_folder(self.folder)
        data = _Claim(people, load_or_create_key(self.folder / "key"))
        with self._open() as claims:
            if not self._is_claimed(claims, ledger, data):
                self._refuse_others(claims, ledger, data)
                rows = [(ledger, address, data.name, record) for record in data.records]
                claims.executemany("INSERT INTO claims VALUES (?, ?, ?, ?)", rows)
            seen = claims.execute("SELECT position, mac FROM ends WHERE ledger = ?", (ledger,)).fetchone()
        return None if seen is None else (int(seen[0]), str(seen[1]))

    def check(self, ledger: str, people: People) -> None:
        """Refuse data as `claim` does; nothing is claimed, and no memory begun. ledger: "" for one not begun yet."""
        if not (self.folder / "site.db").is_file():
            return
        data = _Claim(people, load_or_create_key(self.folder / "key"))
        with self._open() as claims:
            if not self._is_claimed(claims, ledger, data):
                self._refuse_others(claims, ledger, data)

    def saw(self, ledger: str, position: int, mac: str) -> None:
        """Remember how far a ledger goes."""
        with self._open() as claims:
            claims.execute(
                "INSERT INTO ends VALUES (?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET position = excluded.position, "
                "mac = excluded.mac WHERE excluded.position > position",
                (ledger, position, mac),
            )

    def _is_claimed(self, claims: sqlite3.Connection, ledger: str, data: _Claim) -> bool:
        known = "SELECT 1 FROM claims WHERE ledger = ? AND data = ?"
        return claims.execute(known, (ledger, data.name)).fetchone() is not None

    def _refuse_others(self, claims: sqlite3.Connection, ledger: str, data: _Claim) -> None:
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
                    f"Some of these records were released about through another ledger of this site, {address}. Nobody "
                    "would know the ε of both together: use that one (ledger.url, ledger.key, ledger.store). Nothing "
                    "was released."
                )

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
                f"What this site remembers, {path}, cannot be used ({error}). Nothing was released; if it is damaged, "
                "restore it from a backup."
            ) from error
