"""Cut power lines: what was not on the disk at the moment of the cut is lost.

The project lies on an ext4 file system in a file, which is mounted so that nothing but `fsync` makes it write for a
while. At the cut all that the run started is killed and the file is copied as it is: that is the disk that comes back.
Its journal is replayed by mounting it in the old one's place, and the same command is given again. What stands in
sectors that a device half wrote, or that its own cache lost in spite of a flush, is not covered. Root alone may mount.
"""

import random
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

from benchmarks.crash.checks import faults, outcome
from benchmarks.crash.kills import stage_of
from benchmarks.crash.project import PATIENCE, Command, empty_tables, preload, small_project

SIZE = "400M"


def cut_lines(folder: Path, times: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """Cut the line so many times, evenly over a run's life; return at which stages, and what was wrong after."""
    words = ["run", "--preset", "small", "--no-server"]
    whole = small_project(folder / "whole")
    preload(whole, words)
    expected, tables = outcome(whole, "small"), empty_tables(folder)
    where, wrong, rng, life = Counter[str](), Counter[str](), random.Random(seed), 0.0
    for number in range(-1, times):
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
            if number < 0:  # nobody cuts this one
                cut.wait(PATIENCE)
                life = time.monotonic() - began
                continue
            seconds = (number + rng.random()) / times * life
            cut.wait(seconds)
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
            where[stage_of(cut)] += 1
            wrong.update(bad)
            print(
                f"{number + 1:4} at {seconds:6.1f} s, {stage_of(cut)}: {', '.join(sorted(bad)) or 'well'}", flush=True
            )
            if bad:
                print(again.said[-3000:], flush=True)
                shutil.copytree(project, folder / f"cut-{number}", symlinks=True)
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)
            disk.unlink()
    return where, wrong


def _mount(disk: Path, place: Path) -> None:
    subprocess.run(["mount", "-o", "loop,commit=600", str(disk), str(place)], check=True)
