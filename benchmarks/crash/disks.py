"""Disks that are full in each stage: a sentence instead of a traceback, and once there is room the run completes.

The project is on an in-memory file system. It has the space that the run needs, less a random part of what the failing
stage writes. Only root can mount one.
"""

import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.crash.checks import faults, outcome
from benchmarks.crash.project import PATIENCE, Command, answer_in, empty_tables, preload, small_project
from benchmarks.crash.tally import Tally

SIZE = 200 * 2**20


def full_disks(folder: Path, times: int, seed: int, tally: Tally) -> None:
    """Fill the disk `times` times in each stage; count how each run reported it, and the faults after a repeat."""
    words = ["run", "--preset", "small", "--no-server"]
    whole = small_project(folder / "whole")
    preload(whole, words)
    expected, tables = outcome(whole, "small"), empty_tables(folder)
    states = _states(folder, tables)
    rng = random.Random(seed)
    for number in range(times):  # of each stage once, then again: what is stopped has seen all
        for stage, (before, after) in states.items():
            needed = max(4096 * 8, _size(after) - _size(before))
            share = (number + rng.random()) / times

            def once(stage: str = stage, before: Path = before, number: int = number, room: int = int(needed * share)):
                bad = set()
                with _mounted(folder / f"disk-{stage}-{number}") as disk:
                    project = disk / "project"
                    shutil.copytree(before, project, symlinks=True)
                    ballast = disk / "ballast"
                    _fill(disk, ballast, room)
                    first = Command(project, words, log=folder / f"disk-{stage}-{number}.log")
                    first.wait(PATIENCE)
                    told = "not at all" if first.status == 0 else "in a sentence"
                    if "Traceback" in first.said or first.status not in (0, 1):
                        told = "otherwise"
                        bad.add("traceback")
                        print(first.said[-3000:], flush=True)
                    ballast.unlink()
                    again = Command(project, words, log=folder / f"disk-{stage}-{number}-again.log")
                    again.wait(PATIENCE)
                    bad |= faults(project, "small", again, expected)
                last = first.said.strip().splitlines()[-1:] if first.status else []
                print(f"{stage}, {room:,} bytes left: said {told} {last}", flush=True)
                return told, bad

            tally.count(f"{stage}, {number} of {times}, seed {seed}", once)


def _states(folder: Path, tables: Path) -> dict[str, tuple[Path, Path]]:
    """Return for each stage the project as it is before it is made, and after."""
    from tasks.pipeline.graph import MAIN

    project = small_project(folder / "staged")
    shutil.copy(tables, project)
    states, before = {}, folder / "before-all"
    shutil.copytree(project, before, symlinks=True)
    for stage in MAIN.names:

        def make(stage: str = stage) -> None:
            from flows.stages import check_run, make_changed
            from tasks.runtime.versioning import select

            select(project, "small", check_run(project, "small"))
            make_changed(project, "small", [stage])

        answer_in(project, make)
        after = folder / f"after-{stage}"
        shutil.copytree(project, after, symlinks=True)
        states[stage], before = (before, after), after
    return states


def _size(folder: Path) -> int:
    """Return the bytes that a folder takes on such a disk."""
    return sum(-(-path.lstat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


def _fill(disk: Path, ballast: Path, room: int) -> None:
    """Fill a disk, leaving `room` bytes free."""
    free = shutil.disk_usage(disk).free
    with ballast.open("wb") as file:
        rest = max(0, free - room)
        while rest > 0:
            rest -= file.write(bytes(min(rest, 2**20)))


@contextmanager
def _mounted(place: Path) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()
