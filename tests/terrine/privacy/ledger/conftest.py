"""A place for a ledger: SQLite always, PostgreSQL where it is installed (the tests start their own server)."""

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from terrine.privacy.ledger.ledger import Ledger
from tests.terrine.privacy.ledger.helpers import DATASET, Place


def _programs() -> Path | None:
    """The folder of PostgreSQL's server programs: Debian does not put them on the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) + [Path(p) for p in [shutil.which("initdb")] if p]
    return next((path.parent for path in reversed(found) if (path.parent / "pg_ctl").exists()), None)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """URL of a fresh PostgreSQL server on a private socket, or a skip."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL's server programs (initdb, pg_ctl) are not installed")
    pytest.importorskip("psycopg")
    folder = Path(tempfile.mkdtemp(prefix="ledger-"))
    # The server refuses to run as root: the packaged account runs it then.
    account: dict = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    if account:
        try:
            shutil.chown(folder, "postgres", "postgres")
        except LookupError:
            pytest.skip("PostgreSQL does not run as root, and there is no account 'postgres'")
    options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=60"

    def call(program: str, *arguments: str) -> None:
        subprocess.run(
            [programs / program, *arguments],
            check=True,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            **account,
        )

    call("initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "terrine", "-E", "UTF8", "--no-sync")
    call("pg_ctl", "-D", f"{folder}/data", "-l", f"{folder}/log", "-o", options, "-w", "start")
    try:
        yield f"postgresql://terrine@/postgres?host={folder}"
    finally:
        call("pg_ctl", "-D", f"{folder}/data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def place() -> Iterator[Place]:
    """An empty place for a ledger in SQLite; in memory where the system has a folder there, as fsync is slow."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Place(f"sqlite:///{folder}/ledger/ledger.db", Path(folder) / "releases")


@pytest.fixture(params=["sqlite", "postgresql"])
def any_place(request: pytest.FixtureRequest, place: Place) -> Place:
    """An empty place for a ledger in either database."""
    if request.param == "sqlite":
        return place
    server = sql.make_url(request.getfixturevalue("postgresql")).set(drivername="postgresql+psycopg")
    name = f"ledger_{uuid.uuid4().hex}"
    with sql.create_engine(server, isolation_level="AUTOCOMMIT", poolclass=sql.NullPool).connect() as connection:
        connection.execute(sql.text(f"CREATE DATABASE {name}"))
    return Place(server.set(drivername="postgresql", database=name).render_as_string(hide_password=False), place.store)


@pytest.fixture
def ledger(place: Place) -> Ledger:
    ledger = place.open()
    ledger.register(DATASET, epsilon=2.0, delta=1e-5, mode="release")
    return ledger
