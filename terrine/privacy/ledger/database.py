"""Database of the ledger's rows: SQLite by default, PostgreSQL by URL, one writer at a time.

Each transaction takes the write lock before it reads: BEGIN IMMEDIATE in SQLite, an exclusive table lock under
serialisable isolation in PostgreSQL. Rows are inserted and read, never updated or deleted.
"""

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sql
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from terrine.errors import LedgerError
from terrine.files import private_folder, restrict_to_owner
from terrine.privacy.ledger.chain import Row

Result = TypeVar("Result")

_METADATA = sql.MetaData()
_ROWS = sql.Table(
    "terrine_ledger",
    _METADATA,
    sql.Column("position", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("kind", sql.String(16), nullable=False),
    sql.Column("dataset", sql.String(256), nullable=False),
    sql.Column("release_id", sql.String(128)),
    sql.Column("body", sql.Text, nullable=False),
    sql.Column("written", sql.String(40), nullable=False),
    sql.Column("previous", sql.String(64), nullable=False),
    sql.Column("mac", sql.String(64), nullable=False),
    # A second reservation or commit of a release fails even in the database.
    sql.UniqueConstraint("kind", "release_id"),
)
_CREATION_LOCK = 0x7E221E
_SERIALIZATION_FAILURE, _DEADLOCK = "40001", "40P01"


class Transaction:
    """Access to rows with the exclusive right to append."""

    def __init__(self, connection: sql.Connection) -> None:
        self._connection = connection

    def rows(
        self, *, first: int = 1, last: int | None = None, kind: str | None = None, release_id: str | None = None
    ) -> list[Row]:
        """Return rows in order, optionally limited to these positions, this kind or this release."""
        wanted = sql.select(_ROWS).order_by(_ROWS.c.position)
        # Without a bound, rows that another program inserted before the first are found, too.
        wanted = wanted.where(_ROWS.c.position >= first) if first > 1 else wanted
        wanted = wanted if last is None else wanted.where(_ROWS.c.position <= last)
        wanted = wanted if kind is None else wanted.where(_ROWS.c.kind == kind)
        wanted = wanted if release_id is None else wanted.where(_ROWS.c.release_id == release_id)
        return [Row(*row) for row in self._connection.execute(wanted)]

    def last(self) -> int:
        """Return the position of the last row, or 0."""
        return int(self._connection.execute(sql.select(sql.func.max(_ROWS.c.position))).scalar_one() or 0)

    def append(self, row: Row) -> None:
        """Add a row, which is durable when the transaction ends."""
        self._connection.execute(sql.insert(_ROWS).values(**asdict(row)))


class Database:
    """Database of a ledger.

    Args:
        url: SQLAlchemy URL of SQLite or PostgreSQL.
        patience: Seconds to wait for another process's transaction.
        create: Create file and table if they are missing.

    Raises:
        LedgerError: If the URL is not supported, or the database is missing or cannot be opened.
    """

    def __init__(self, url: str, *, patience: float = 60.0, create: bool = True) -> None:
        try:
            address = sql.make_url(url)
        except ArgumentError as error:
            raise LedgerError(
                f"{url!r} is not the URL of a ledger: write sqlite:///path/to/ledger.db or postgresql://host/database."
            ) from error
        self.name = address.render_as_string(hide_password=True)
        self._patience = patience
        backend = address.get_backend_name()
        if backend == "sqlite":
            self._engine = self._open_sqlite(address, create)
        elif backend == "postgresql":
            if "+" not in address.drivername:
                # psycopg returns bytes instead of text if the server has no encoding.
                address = address.set(drivername="postgresql+psycopg").update_query_dict({"client_encoding": "utf8"})
            try:
                self._engine = sql.create_engine(address, isolation_level="SERIALIZABLE", poolclass=NullPool)
            except ModuleNotFoundError as error:
                raise LedgerError(
                    f"The ledger {self.name} needs a PostgreSQL driver: pip install 'terrine[postgresql]'."
                ) from error
        else:
            raise LedgerError(f"The ledger must be in SQLite or PostgreSQL, not {backend}. Change its URL {self.name}.")
        self._postgresql = backend == "postgresql"
        if create:
            self._retry(self._create_table)
        elif not self._retry(lambda: sql.inspect(self._engine).has_table(_ROWS.name)):
            raise LedgerError(f"There is no ledger at {self.name}. Make a run first, or correct the URL.")

    def transact(self, work: Callable[[Transaction], Result]) -> Result:
        """Run `work` as the only writer and commit. If the database requests a retry, the transaction is repeated.

        Args:
            work: Reads and appends rows, and has no other side effects.

        Raises:
            LedgerError: If the database is locked, damaged or unreachable. Nothing was written.
        """

        def once() -> Result:
            with self._engine.begin() as connection:
                if self._postgresql:
                    # Locked before the first read, which determines the snapshot of a serialisable transaction.
                    connection.execute(sql.text(f"SET LOCAL lock_timeout = {round(self._patience * 1000)}"))
                    connection.execute(sql.text(f"LOCK TABLE {_ROWS.name} IN EXCLUSIVE MODE"))
                return work(Transaction(connection))

        return self._retry(once)

    @contextlib.contextmanager
    def exclusive(self, name: str, patience: float) -> Iterator[None]:
        """Hold the lock `name` against all other machines that use this database, until the connection ends.

        SQLite is used from a single machine, for which the lock file in the store suffices.
        """
        if not self._postgresql:
            yield
            return
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        deadline = time.monotonic() + patience
        with self._errors():
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            with self._errors():
                while not connection.execute(sql.select(sql.func.pg_try_advisory_lock(number))).scalar_one():
                    if time.monotonic() > deadline:
                        raise LedgerError(
                            f"Another process has held {name} for more than {patience:g} s. Wait for it, or stop it. "
                            "Nothing was released."
                        )
                    time.sleep(0.05)
            yield
        finally:
            connection.close()

    def _create_table(self) -> None:
        # Not serialisable, so that a table created by another process during the wait for the lock is seen.
        engine = self._engine.execution_options(isolation_level="READ COMMITTED") if self._postgresql else self._engine
        with engine.begin() as connection:
            if self._postgresql:
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_CREATION_LOCK)))
            _METADATA.create_all(connection)

    def _open_sqlite(self, address: sql.URL, create: bool) -> sql.Engine:
        if address.database in (None, "", ":memory:"):
            raise LedgerError("A ledger cannot be in memory. Give SQLite a file.")
        path = Path(str(address.database))
        if not path.exists() and not create:
            raise LedgerError(f"There is no ledger at {path}. Make a run first, or correct the URL.")
        try:
            private_folder(path.parent)
            # SQLite journals inherit the file permissions of the database.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise LedgerError(f"The ledger {path} cannot be opened or created: {error.strerror}.") from error
        restrict_to_owner(path)
        engine = sql.create_engine(address, poolclass=NullPool, connect_args={"timeout": self._patience})
        sql.event.listen(engine, "connect", self._prepare_sqlite)
        sql.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine

    def _prepare_sqlite(self, connection: sqlite3.Connection, _: Any) -> None:
        # Transactions start explicitly, above, because the driver's begin is not immediate.
        connection.isolation_level = None
        deadline = time.monotonic() + self._patience
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # The switch to WAL does not wait for other connections.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        # A reservation must survive every power failure that its release survives.
        connection.execute("PRAGMA synchronous = FULL")

    def _retry(self, work: Callable[[], Result]) -> Result:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                with self._errors():
                    return work()
            except LedgerError as error:
                # PostgreSQL requests a retry after a conflict with another transaction.
                state = getattr(getattr(error.__cause__, "orig", None), "sqlstate", None)
                if state not in (_SERIALIZATION_FAILURE, _DEADLOCK) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise LedgerError(
                f"The ledger {self.name} refused a second entry for the same release or position, written by another "
                "program. Nothing was released."
            ) from error
        except (SQLAlchemyError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            reason = str(cause).strip().splitlines()[0]
            if "locked" in reason or "lock timeout" in reason:
                raise LedgerError(
                    f"The ledger {self.name} has been locked by another process for {self._patience:g} s. Nothing was "
                    "released; try again when it is done."
                ) from error
            raise LedgerError(
                f"The ledger {self.name} cannot be used ({reason}). Nothing was released; if it is damaged, restore it "
                "from a backup."
            ) from error
