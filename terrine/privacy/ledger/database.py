"""Where the ledger's rows are kept: SQLite by default, PostgreSQL by URL, one writer at a time.

Every transaction takes the write lock before it reads, so what it reads is what it appends to: SQLite by BEGIN
IMMEDIATE, PostgreSQL by an exclusive table lock under serialisable isolation. Rows are inserted and read, never updated
or deleted.
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
    # The last line of defence: a second reservation or commit of a release fails in the database itself.
    sql.UniqueConstraint("kind", "release_id"),
)
_CREATION_LOCK = 0x7E221E
_SERIALIZATION_FAILURE, _DEADLOCK = "40001", "40P01"


class Transaction:
    """Rows as they are, with the exclusive right to append."""

    def __init__(self, connection: sql.Connection) -> None:
        self._connection = connection

    def rows(
        self, *, first: int = 1, last: int | None = None, kind: str | None = None, release_id: str | None = None
    ) -> list[Row]:
        """Rows in order: all, or those within these bounds, of this kind, about this release."""
        wanted = sql.select(_ROWS).order_by(_ROWS.c.position)
        # An edit past Terrine may have put a row before the first.
        wanted = wanted.where(_ROWS.c.position >= first) if first > 1 else wanted
        wanted = wanted if last is None else wanted.where(_ROWS.c.position <= last)
        wanted = wanted if kind is None else wanted.where(_ROWS.c.kind == kind)
        wanted = wanted if release_id is None else wanted.where(_ROWS.c.release_id == release_id)
        return [Row(*row) for row in self._connection.execute(wanted)]

    def last(self) -> int:
        """The position of the last row, 0 where there is none."""
        return int(self._connection.execute(sql.select(sql.func.max(_ROWS.c.position))).scalar_one() or 0)

    def append(self, row: Row) -> None:
        """Add one row; it is durable when the transaction ends."""
        self._connection.execute(sql.insert(_ROWS).values(**asdict(row)))


class Database:
    """A ledger's database.

    Args:
        url: Any SQLAlchemy URL of SQLite or PostgreSQL.
        patience: Seconds to wait for another process's transaction.
        create: Whether to make the table, and the file, when there is none.

    Raises:
        LedgerError: a URL of something else, a database that cannot be opened, or none where `create` is false.
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
                # psycopg hands out bytes instead of text where a server was set up without an encoding.
                address = address.set(drivername="postgresql+psycopg").update_query_dict({"client_encoding": "utf8"})
            try:
                self._engine = sql.create_engine(address, isolation_level="SERIALIZABLE", poolclass=NullPool)
            except ModuleNotFoundError as error:
                raise LedgerError(
                    f"The ledger {self.name} needs a PostgreSQL driver: pip install 'terrine[postgresql]'."
                ) from error
        else:
            raise LedgerError(
                f"A ledger is kept in SQLite or PostgreSQL, not in {backend}: change its URL {self.name}."
            )
        self._postgresql = backend == "postgresql"
        if create:
            self._retry(self._create_table)
        elif not self._retry(lambda: sql.inspect(self._engine).has_table(_ROWS.name)):
            raise LedgerError(f"There is no ledger at {self.name}: run the pipeline first, or correct the URL.")

    def transact(self, work: Callable[[Transaction], Result]) -> Result:
        """Run `work` as the only writer, and commit; run it again if the database asks for that.

        Args:
            work: Reads and appends rows and does nothing else that cannot be repeated.

        Raises:
            LedgerError: the database is locked, damaged or out of reach; nothing was written.
        """

        def once() -> Result:
            with self._engine.begin() as connection:
                if self._postgresql:
                    # Locked before the first read: a serialisable transaction sees the table as it was at that read.
                    connection.execute(sql.text(f"SET LOCAL lock_timeout = {round(self._patience * 1000)}"))
                    connection.execute(sql.text(f"LOCK TABLE {_ROWS.name} IN EXCLUSIVE MODE"))
                return work(Transaction(connection))

        return self._retry(once)

    @contextlib.contextmanager
    def exclusive(self, name: str, patience: float) -> Iterator[None]:
        """Hold `name` against every other machine on this database; freed when the connection dies.

        SQLite knows one machine only: there the lock on the store's file is enough, and this does nothing.
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
                            f"Another process has held {name} for more than {patience:g} s: wait for it, or end it. "
                            "Nothing was released."
                        )
                    time.sleep(0.05)
            yield
        finally:
            connection.close()

    def _create_table(self) -> None:
        # Not serialisable: after the wait for the lock, a table that another process has made meanwhile must be seen.
        engine = self._engine.execution_options(isolation_level="READ COMMITTED") if self._postgresql else self._engine
        with engine.begin() as connection:
            if self._postgresql:
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_CREATION_LOCK)))
            _METADATA.create_all(connection)

    def _open_sqlite(self, address: sql.URL, create: bool) -> sql.Engine:
        if address.database in (None, "", ":memory:"):
            raise LedgerError("A ledger in memory would forget what was spent: give SQLite a file.")
        path = Path(str(address.database))
        if not path.exists() and not create:
            raise LedgerError(f"There is no ledger at {path}: run the pipeline first, or correct the URL.")
        try:
            private_folder(path.parent)
            # SQLite gives its journals the mode of the database.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise LedgerError(f"The ledger {path} cannot be opened or made: {error.strerror}.") from error
        restrict_to_owner(path)
        engine = sql.create_engine(address, poolclass=NullPool, connect_args={"timeout": self._patience})
        sql.event.listen(engine, "connect", self._prepare_sqlite)
        sql.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine

    def _prepare_sqlite(self, connection: sqlite3.Connection, _: Any) -> None:
        # Transactions are begun explicitly, above: the driver's own begin is not immediate.
        connection.isolation_level = None
        deadline = time.monotonic() + self._patience
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # The switch to WAL does not wait for other connections by itself.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        # A reservation must survive a power failure that the release it paid for survives.
        connection.execute("PRAGMA synchronous = FULL")

    def _retry(self, work: Callable[[], Result]) -> Result:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                with self._errors():
                    return work()
            except LedgerError as error:
                # PostgreSQL gave way to another transaction and asks to be tried again.
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
                f"The ledger {self.name} refused a second entry for the same release or position: it is being written "
                "past Terrine. Nothing was released."
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
