"""SIGKILL of `terrine run` at moments spread evenly over its life: alone, and every other time with all it started."""

import random
import re
import shutil
import time
from pathlib import Path

from benchmarks.crash.checks import faults, outcome
from benchmarks.crash.project import PATIENCE, Command, empty_tables, preload, removed, small_project
from benchmarks.crash.tally import Tally

FRESH = 10
"""One kill in FRESH is of a new process with a Prefect server, as from a shell; the others are forks without one."""
SLOWER = 1.02
"""Factor on the assumed duration of a run after each kill; a run that ends before its kill resets the duration."""


def kill_runs(folder: Path, preset: str, times: int, seed: int, tally: Tally) -> None:
    """Kill runs of a preset; count where they were, by the last stage that was made, and what was wrong after."""
    words = ["run", "--preset", preset]
    whole = small_project(folder / "whole")
    preload(whole, [*words, "--no-server"])
    expected, tables = outcome(whole, preset), empty_tables(folder)
    lives = {False: 0.0, True: 0.0}
    for fresh in lives if times >= FRESH else [False]:
        project = small_project(folder / f"undisturbed-{fresh}")
        began, undisturbed = time.monotonic(), Command(project, _words(words, fresh), fresh=fresh)
        undisturbed.wait(PATIENCE)
        lives[fresh] = time.monotonic() - began
        if wrong := faults(project, preset, undisturbed, expected):
            raise SystemExit(f"A run that nobody kills: {wrong}\n{undisturbed.said}")
        removed(project)
    print(
        f"A run takes {lives[False]:.1f} s forked and {lives[True]:.1f} s from a shell. Projects: {folder}", flush=True
    )
    rng = random.Random(seed)
    order = list(range(times))
    rng.shuffle(order)
    for place, number in enumerate(order):
        fresh = place % FRESH == FRESH - 1
        share = (number + rng.random()) / times

        def once(place: int = place, number: int = number, fresh: bool = fresh, share: float = share):
            while True:
                project = small_project(folder / f"kill-{number}")
                if place % 4:  # with the tables of MLflow, which take long to be laid out; every fourth lays them out
                    shutil.copy(tables, project)
                began, killed = time.monotonic(), Command(project, _words(words, fresh), fresh=fresh)
                if killed.wait(share * lives[fresh]) is None:
                    break
                if killed.status:
                    return "before its kill", ["not completed"]
                lives[fresh] = time.monotonic() - began  # the machine has less to do than it had
                removed(project)
            killed.kill(everything=place % 2 == 1)
            lives[fresh] *= SLOWER
            again = Command(project, _words(words, fresh), fresh=fresh)
            again.wait(PATIENCE)
            bad = faults(project, preset, again, expected)
            for process in [*killed.processes(), *again.processes()]:
                process.kill()
            where = stage_of(killed)
            if not bad:
                removed(project)
            return where, bad

        tally.count(f"{number} of {times}, seed {seed}", once)


def _words(words: list[str], fresh: bool) -> list[str]:
    return words if fresh else [*words, "--no-server"]


def stage_of(killed: Command) -> str:
    """Return where a run was that was killed."""
    made = re.findall(r"^ *\d+/\d+ (\S+)", killed.said, re.MULTILINE)
    return f"after {made[-1]}" if made else "before its first stage's end"
