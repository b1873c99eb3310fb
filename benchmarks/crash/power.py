"""Cut power lines: what was not on the disk at the moment of the cut is lost.

The project is on an ext4 file system in a file, mounted so that for a while only `fsync` makes it write. At the cut,
every process of the run is killed and the file is copied as it is: the copy is the disk after the power failure.
Mounting it at the old path replays its journal, and the same command runs again. Not covered: torn sectors, and data
that a device's own cache lost despite a flush. Only root can mount.
"""

import random
import shutil
import subprocess
import time
from pathlib import Path

from benchmarks.crash.checks import faults, outcome
from benchmarks.crash.kills import stage_of
from benchmarks.crash.project import PATIENCE, Command, empty_tables, preload, small_project
from benchmarks.crash.tally import Tally

SIZE = "400M"


def cut_lines(folder: Path, times: int, seed: int, tally: Tally) -> None:
    """Cut the line `times` times, evenly over a run's duration; count the stages hit and the faults after a repeat."""
    words = ["run", "--preset", "small", "--no-server"]
    whole = small_project(folder / "whole")
    preload(whole, words)
    expected, tables = outcome(whole, "small"), empty_tables(folder)

    def cut_once(number: int, seconds: float) -> tuple[str, set[str], float]:
        """Cut the line of a run after `seconds`, and repeat it; return its stage, the faults and the first duration."""
        disk, place = folder / f"line-{number}.img", folder / f"line-{number}"
        subprocess.run(["truncate", "-s", SIZE, str(disk)], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(disk)], check=True)
        place.mkdir()
        _mount(disk, place)
        try:
            project = small_project(place / "project")
            shutil.copy(tables, project)
            subprocess.run(["sync", "-f", str(place)], check=True)
            began = time.monotonic()
            cut = Command(project, words, log=folder / f"line-{number}.log")
            cut.wait(seconds)
            life = time.monotonic() - began
            cut.kill(everything=True)
            came_back = folder / f"line-{number}-again.img"
            subprocess.run(["cp", "--sparse=always", str(disk), str(came_back)], check=True)
            subprocess.run(["umount", "-l", str(place)], check=True)
            disk.unlink()
            disk = came_back
            _mount(disk, place)
            again = Command(project, words, log=folder / f"line-{number}-again.log")
            again.wait(PATIENCE)
            bad = faults(project, "small", again, expected)
            if bad:
                print(again.said[-3000:], flush=True)
                shutil.copytree(project, folder / f"cut-{number}", symlinks=True)
            return stage_of(cut), bad, life
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)
            disk.unlink()

    _, wrong, life = cut_once(-1, PATIENCE)
    if wrong:
        raise SystemExit(f"A run whose line nobody cuts before its end: {wrong}")
    rng = random.Random(seed)
    for number in range(times):
        seconds = (number + rng.random()) / times * life
        tally.count(
            f"{number} of {times}, seed {seed}",
            lambda number=number, seconds=seconds: cut_once(number, seconds)[:2],
        )


def _mount(disk: Path, place: Path) -> None:
    subprocess.run(["mount", "-o", "loop,commit=600", str(disk), str(place)], check=True)
