"""Ten runs at once in one folder, two of them the same: they end as ten runs one after the other do."""

from pathlib import Path
from typing import Any

from benchmarks.crash.project import PATIENCE, SMALL, Command, answer_in, preload, set_default, small_project
from benchmarks.crash.tally import Tally

SEEDS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 8)
BUDGET = 16.0
"""Not enough for nine releases."""


def ten_runs(folder: Path, times: int, tally: Tally) -> None:
    """Make the runs in turns and at once, `times` times; count the completed runs and the differences."""
    preload(small_project(folder / "whole"), _words(0))
    for number in range(times):
        tally.count(f"{number + 1}", lambda number=number: _ten_runs(folder, number))


def _ten_runs(folder: Path, number: int) -> tuple[str, set[str]]:
    wrong, outcomes, completed = set(), [], []
    for at_once in (False, True):
        name = "at once" if at_once else "in turns"
        project = small_project(folder / f"{name.replace(' ', '-')}-{number}")
        preset = SMALL | {"ledger": {"account": "ten", "epsilon": BUDGET}}
        set_default(project, "small", preset)
        runs = []
        for seed in SEEDS:
            runs.append(Command(project, _words(seed)))
            if not at_once:
                runs[-1].wait(PATIENCE)
        for run in runs:
            run.wait(PATIENCE)
            if "Traceback" in run.said or run.status not in (0, 1):
                wrong.add("traceback")
                print(run.said[-3000:], flush=True)
        if runs[-1].status != runs[-2].status:
            wrong.add("two ends of one run")
        # The first runs to charge are the ones that the budget covers.
        statuses = [-1 if run.status is None else run.status for run in runs]
        ended = sorted(dict(zip(SEEDS, statuses, strict=True)).values())
        outcomes.append(ended + answer_in(project, lambda project=project: _charged(project)))
        completed.append(f"{ended.count(0)} complete {name}")
        print(f"{name}: {outcomes[-1]}", flush=True)
    if outcomes[0] != outcomes[1]:
        wrong.add("another end")
    return ", ".join(completed), wrong


def _words(seed: int) -> list[str]:
    return ["run", "--preset", "small", "--set", f"seed={seed}", "--no-server"]


def _charged(project: Path) -> list[Any]:
    """Return the charges, the ε of all together, and what is left over and changed."""
    from tasks.config.presets import project_root, resolve
    from tasks.runtime.versioning import changed_stages
    from tasks.tools.ledger import open_existing, overview
    from tasks.transcription.graph import pipeline_of

    ledger, names = open_existing()
    (account,) = overview(ledger, names)
    left = [path.name for path in project.rglob("*") if path.name.endswith((".tmp", ".old"))]
    made = sorted(path.parent.name for path in project.glob("data/release/*/privacy.json"))
    changed = [
        stage for run in made for stage in changed_stages(project_root(), run, pipeline_of(resolve(project, run)))
    ]
    return [len(account["releases"]), account["epsilon_spent"], ledger.verify(), left, len(made), changed]
