"""The Prefect server of a run: it dies with the run, and one that does not come is said in a sentence."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from flows import making, server
from tasks.pipeline.graph import MAIN
from terrine.errors import TerrineError

KILLED = """
import os, sys
from pathlib import Path
from flows import server
empty = Path(sys.argv[1]) / "empty.db"
empty.touch()
server.empty_database = lambda: empty
server._SERVE = server._SERVE.partition("import uvicorn")[0] + "import time; time.sleep(600)"
server.start(Path(sys.argv[1]))
print(server._own._process.pid, os.environ["PREFECT_API_URL"], flush=True)
input()
"""


def test_it_dies_with_a_run_that_is_killed_and_shares_its_database_with_nobody(tmp_path):
    program = [sys.executable, "-c", KILLED, str(tmp_path)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    own = clean | {"PREFECT_HOME": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, env=own, cwd=tmp_path, **pipes) as process:
        number, url = process.stdout.readline().split()
        started = psutil.Process(int(number))
        while not (environment := started.environ()):  # it has none for a moment, while its program is loaded
            time.sleep(0.01)
        assert environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"].startswith(
            f"sqlite+aiosqlite:///{tmp_path}/.dvc/tmp/terrine/server-"
        )
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while started.is_running() and started.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the server outlived its run"
        time.sleep(0.05)
    assert url.startswith("http://127.0.0.1:")
    assert not list((tmp_path / ".dvc" / "tmp" / "terrine").iterdir())


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a server that does what it is told instead of serving."""
    (tmp_path / "empty.db").touch()
    monkeypatch.setattr(server, "empty_database", lambda: tmp_path / "empty.db")

    def started(what):
        monkeypatch.setattr(server, "_SERVE", what)
        return server.OwnServer(tmp_path)

    return started


def test_one_that_is_slow_is_waited_for_said_and_at_last_given_up_with_the_way_without(start, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "SILENT", 0.2)
    slow, said = start("import time; time.sleep(600)"), []
    with pytest.raises(TerrineError, match=r"did not start within 0\.8 seconds.*terrine run --no-server"):
        slow.wait(said.append, seconds=0.8)
    dead, alive = tmp_path / ".dvc" / "tmp" / "terrine" / "server-dead", start("import time; time.sleep(600)")
    dead.mkdir()
    assert len(said) == 1
    assert "Waiting for the Prefect server" in said[0]
    assert not psutil.pid_exists(slow._process.pid)
    with pytest.raises(TerrineError, match=r"ended while it started.*terrine run --no-server"):
        start("raise SystemExit(3)").wait(said.append)
    server.clear_after_the_dead(tmp_path)
    assert not dead.exists()
    assert alive._folder.is_dir()
    alive.end()
    assert not alive._folder.exists()


def test_a_disk_without_room_for_its_database_is_said_with_the_way_without(tmp_path, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server, "empty_database", full)
    with pytest.raises(TerrineError, match=r"could not be started: .*No space left.*terrine run --no-server"):
        server.start(tmp_path)
    assert not server.is_own()


@pytest.fixture
def made(project, monkeypatch):
    """Makes the small run, each stage a note of whether it was a flow; returns the notes and the servers started."""
    notes, started = [], []
    monkeypatch.setitem(
        sys.modules,
        "flows.pipeline",
        SimpleNamespace(
            pipeline=lambda **_: notes.append("the user's server"),
            run_stage_as_flow=lambda root, run, stage: notes.append((stage, len(waited))),
        ),
    )
    waited = []
    monkeypatch.setattr(making, "run_stage", lambda root, run, stage: notes.append(stage))
    monkeypatch.setattr(making, "commit", lambda *_: None)
    monkeypatch.setattr(making, "take_over", lambda *_: None)
    monkeypatch.setattr(server, "start", lambda root: started.append(len(notes)))
    monkeypatch.setattr(server, "wait", lambda say: waited.append(len(notes)))

    def make(unchanged=()):
        monkeypatch.setattr(making, "is_changed", lambda root, run, stage, pipeline: stage not in unchanged)
        making.make(project, "small")
        return notes, started

    return make


def test_a_server_of_ones_own_starts_beside_the_first_stages_and_carries_what_fans_out(made, monkeypatch):
    monkeypatch.setattr(server, "is_the_users", lambda: False)
    notes, started = made()
    flows = [note[0] for note in notes if isinstance(note, tuple)]
    assert flows == ["synthesize", "average", "teach"]
    assert notes[:3] == ["parameters", "dataset", "partition"]
    assert notes[3] == ("synthesize", 1)
    assert started[0] == 0
    assert max(started) == notes.index(("teach", 3))


def test_where_nothing_that_fans_out_is_to_be_made_nothing_is_started_and_the_dead_are_cleared_all_the_same(
    made, project, monkeypatch
):
    monkeypatch.setattr(server, "is_the_users", lambda: False)
    dead = project / ".dvc" / "tmp" / "terrine" / "server-dead"
    dead.mkdir(parents=True)
    until = MAIN.names.index("vote")
    notes, started = made(unchanged=MAIN.names[:until])
    assert notes[0] == "vote"
    assert not started
    assert not dead.exists()


def test_a_server_of_the_users_own_sees_the_run(made, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert server.is_the_users()
    assert made() == (["the user's server"], [])
