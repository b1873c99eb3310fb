"""`terrine run` for a complete run."""

import numpy as np
import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.stages import run_stage
from tasks.config.presets import derive
from tasks.runtime.locks import making
from tasks.runtime.release_identity import data_changes
from tasks.runtime.store import Folders
from tests.flows.conftest import set_small


@pytest.fixture
def nothing_is_left(monkeypatch):
    """Have DVC call every stage unchanged, MLflow have the run, and a result be a line."""
    monkeypatch.setattr("flows.cli.run.log_again", lambda made: None)
    monkeypatch.setattr("tasks.runtime.versioning.changed_stages", lambda *of: [])
    monkeypatch.setattr(
        "tasks.runtime.stage_graph.load", lambda name: lambda made: "\n".join(["what it says", *data_changes(made)])
    )
    monkeypatch.setattr("tasks.reports.summary.costs", lambda *of: "what it cost")


def test_a_run_that_is_complete_clears_what_killed_processes_left_and_nothing_that_a_living_one_uses(
    project, nothing_is_left
):
    run_stage(project, derive(project, "small", []), "parameters")
    folders, mark = Folders(project, "small"), ".0123456789ab.tmp"
    own, shared = folders.dataset / f".train.npy{mark}", folders.shared("backbone", "1234") / f".checkpoint{mark}"
    other = Folders(project, "other").dataset / f".train.npy{mark}"

    def run():
        for path in (own, shared, other):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        done = CliRunner().invoke(app, ["run", "--preset", "small"])
        assert "nothing to do" in done.output, done.output
        return [path.exists() for path in (own, shared, other)]

    assert run() == [False, False, True]
    with making(project, "other"):
        assert run() == [False, True, True]


def test_a_finished_run_whose_data_changed_is_not_called_up_to_date(project, nothing_is_left):
    generator = np.random.default_rng(0)

    def write(count):
        images = generator.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        np.savez(project / "own.npz", images=images, labels=np.arange(count) % 3)

    write(400)
    set_small(
        project,
        data={"name": "npz", "path": "own.npz"},
        ledger={"account": "clinic", "epsilon": 50},
    )
    run = derive(project, "small", [])
    for stage in ("parameters", "dataset"):
        run_stage(project, run, stage)
    Folders(project, run).report.touch()
    done = CliRunner().invoke(app, ["run", "--preset", "small"])
    assert done.exit_code == 0, done.output
    assert "nothing to do" in done.output
    write(399)
    checked = CliRunner().invoke(app, ["check", "--preset", "small"])
    assert "The data files have changed since run small read them" in " ".join(checked.output.split())
    done = CliRunner().invoke(app, ["run", "--preset", "small"])
    said = " ".join(done.output.split())
    assert done.exit_code == 1
    assert "nothing to do" not in said
    assert "Run small is finished, but its data have changed since. what it says" in said
    assert "--set data.edition=2" in said
