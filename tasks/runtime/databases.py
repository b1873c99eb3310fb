"""SQLite databases of libraries: laid out apart and renamed, for nobody can go on from a half of their migrations."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tasks.runtime.locks import locked
from terrine.files import sync_folder


def lay_out(database: Path, migrate: Callable[[Path], None], lock: Path) -> None:
    """Make a database that is not there: `migrate` fills a file beside it, and it is whole or absent.

    lock: held meanwhile. An empty file is none: it is what a migration leaves that was killed at its beginning.
    """
    if _is_there(database):
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock, what=f"is laying out {database.name}"):
        if _is_there(database):
            return
        with tempfile.TemporaryDirectory(prefix=f".{database.name}.", suffix=".tmp", dir=database.parent) as folder:
            fresh, whole = Path(folder, "fresh.db"), Path(folder, "whole.db")
            migrate(fresh)
            with closing(sqlite3.connect(fresh)) as connection:  # with all that is in its log
                connection.execute("VACUUM INTO ?", (str(whole),))
            with whole.open("rb") as stream:
                os.fsync(stream.fileno())
            whole.replace(database)
            sync_folder(database.parent)


def _is_there(database: Path) -> bool:
    return database.is_file() and database.stat().st_size > 0
