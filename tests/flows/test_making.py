"""What a run does where nothing is left to be made."""

import fcntl
import os

from typer.testing import CliRunner

from flows.cli import app
from tasks.runtime.locks import FOLDER, making
from tasks.runtime.store import Folders


def test_a_run_that_is_complete_clears_what_killed_processes_left_and_nothing_that_a_living_one_uses(
    project, monkeypatch
):
    monkeypatch.setattr("tasks.runtime.versioning.changed_stages", lambda *of: [])
    monkeypatch.setattr("tasks.runtime.graph.load", lambda name: lambda made: "what it says")
    monkeypatch.setattr("tasks.reports.summary.costs", lambda *of: "what it cost")
    folders, mark = Folders(project, "small"), ".0123456789ab.tmp"
    own, shared = folders.dataset / f".train.npy{mark}", folders.shared("backbone", "1234") / f".checkpoint{mark}"
    dead, alive = project / FOLDER / "server-dead", project / FOLDER / "server-alive"
    other = Folders(project, "other").dataset / f".train.npy{mark}"

    def run():
        for folder in (dead, alive, *(path.parent for path in (own, shared, other))):
            folder.mkdir(parents=True, exist_ok=True)
        for path in (own, shared, other):
            path.touch()
        held = os.open(alive, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        done = CliRunner().invoke(app, ["run", "--preset", "small"])
        os.close(held)
        assert "nothing to do" in done.output, done.output
        return [path.exists() for path in (own, dead, shared, alive, other)]

    assert run() == [False, False, False, True, True]
    with making(project, "other"):
        assert run() == [False, False, True, True, True]
