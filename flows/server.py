"""The Prefect server of a run: the user's own, or one that this process starts for itself and that dies with it.

Prefect would start one too, but on the database of all others, so that runs at once wait for each other and a kill in
its first migration is in everybody's way, with services that nobody needs, and as a process that outlives a kill.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from tasks.runtime.databases import lay_out
from tasks.runtime.locks import FOLDER, locked, of_project
from terrine.errors import TerrineError
from terrine.ports import free_ports

WITHOUT = "`terrine run --no-server` makes the run without one, its tasks one after the other."
SECONDS = 600.0
"""How long a server may take to start; a machine where everything else has the cores needs minutes."""
SILENT = 15.0

_IDLE = (
    "CANCELLATION_CLEANUP",
    "CLEANUP_RECONCILER",
    "EVENT_PERSISTER",
    "FOREMAN",
    "LATE_RUNS",
    "PAUSE_EXPIRATIONS",
    "REPOSSESSOR",
    "SCHEDULER",
    "TASK_RUN_RECORDER",
    "TRIGGERS",
)
"""Services of a server for what comes after a run, or from elsewhere."""

_SERVE = """
import os, shutil, sys, threading
def end_with_the_run():
    sys.stdin.buffer.read()
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    os._exit(0)
threading.Thread(target=end_with_the_run, daemon=True).start()
import uvicorn
app = "prefect.server.api.server:create_app"
uvicorn.run(app, factory=True, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", lifespan="on")
"""

_LAY_OUT = """
import asyncio
from prefect.server.database import provide_database_interface
from prefect.server.models.block_registration import run_block_auto_registration
async def lay_out():
    database = provide_database_interface()
    await database.create_db()
    async with await database.session() as session:
        await run_block_auto_registration(session=session)
asyncio.run(lay_out())
"""

_own: OwnServer | None = None


def answers(url: str, process: subprocess.Popen, seconds: float, late: Callable[[], None] = lambda: None) -> bool:
    """Wait until the server of a process answers at the URL of its API; False where it ended, or is not there in time.

    late: called once, when it takes long.
    """
    began, said = time.monotonic(), False
    while process.poll() is None and (waited := time.monotonic() - began) < seconds:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=10):
            return True
        if waited > SILENT and not said:
            said = True
            late()
        time.sleep(0.1)
    return False


class OwnServer:
    """A server on this machine for this process alone, with a database of its own that begins empty."""

    def __init__(self, root: Path) -> None:
        with locked(of_project(root, "servers")):
            self._folder = Path(tempfile.mkdtemp(prefix="server-", dir=root / FOLDER))
            self._held = os.open(self._folder, os.O_RDONLY)  # for as long as this process lives
            fcntl.flock(self._held, fcntl.LOCK_EX)
        database = self._folder / "prefect.db"
        shutil.copyfile(empty_database(), database)
        (port,) = free_ports()
        self.url = f"http://127.0.0.1:{port}/api"
        environment = os.environ | {f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in _IDLE}
        environment |= {
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": _url(database),
            "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",
            "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
            "PREFECT_SERVER_UI_ENABLED": "false",
            "PREFECT__SERVER_EPHEMERAL": "1",
            "PREFECT__SERVER_FINAL": "1",
        }
        program = [sys.executable, "-P", "-c", _SERVE, str(port), str(self._folder)]
        # Its input is a pipe that ends with this process, however that ends.
        self._process = subprocess.Popen(program, env=environment, stdin=subprocess.PIPE)
        atexit.register(self.end)

    def wait(self, say: Callable[[str], None], seconds: float = SECONDS) -> None:
        """Wait until it answers. Raises TerrineError when it ended, or is not there in time."""
        words = f"Waiting for the Prefect server to start: the machine is busy. {WITHOUT}"
        if answers(self.url, self._process, seconds, lambda: say(words)):
            return
        if self._process.poll() is not None:
            raise TerrineError(f"The Prefect server for this run ended while it started. {WITHOUT}")
        self.end()
        raise TerrineError(f"The Prefect server for this run did not start within {seconds:g} seconds. {WITHOUT}")

    def end(self) -> None:
        """End it, and remove its database."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def clear_after_the_dead(root: Path) -> None:
    """Remove databases of servers that were killed together with their run."""
    with locked(of_project(root, "servers")):  # nobody has one that is made and not held yet
        for database in (root / FOLDER).glob("server-*"):
            try:
                descriptor = os.open(database, os.O_RDONLY)
            except FileNotFoundError:  # its server has just ended
                continue
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(database, ignore_errors=True)
            os.close(descriptor)


def empty_database() -> Path:
    """Return a database of this Prefect with what a server puts into one that is new; it is made once for a user."""
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    kept = home / f"terrine-{version('prefect')}.db"
    lay_out(kept, _migrate, kept.with_suffix(".lock"))
    return kept


def _migrate(database: Path) -> None:
    own = os.environ | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": _url(database)}
    subprocess.run([sys.executable, "-P", "-c", _LAY_OUT], env=own, check=True)


def start(root: Path) -> None:
    """Start a server for this process, unless it has one; `wait` for it before Prefect is asked for anything.

    Raises TerrineError where its database cannot be made, as on a disk that is full.
    """
    global _own
    if _own is not None:
        return
    try:
        _own = OwnServer(root)
    except (OSError, sqlite3.Error, subprocess.CalledProcessError) as error:
        raise TerrineError(f"The Prefect server for this run could not be started: {error}. {WITHOUT}") from error
    os.environ["PREFECT_API_URL"] = _own.url  # before Prefect is imported, and for processes that carry tasks
    os.environ["PREFECT_LOGGING_TO_API_ENABLED"] = "false"


def wait(say: Callable[[str], None]) -> None:
    """Wait until the server that was started answers: see `OwnServer.wait`."""
    if _own is not None:
        _own.wait(say)


def end() -> None:
    """End this process's own server, if it has one."""
    if _own is not None:
        _own.end()


def is_own() -> bool:
    """Tell whether the server is this process's own and ends with it."""
    return _own is not None


def is_the_users() -> bool:
    """Tell whether the user has set a server, or Prefect is here already and sees to it."""
    if _own is not None:
        return False
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    places = (home / "profiles.toml", Path("prefect.toml"), Path(".env"))
    if "PREFECT_API_URL" in os.environ or "prefect" in sys.modules:
        return True
    if not any(place.is_file() for place in places):
        return False
    from prefect.settings import PREFECT_API_URL

    return bool(PREFECT_API_URL.value())


def _url(database: Path) -> str:
    return f"sqlite+aiosqlite:///{database}"
