"""Kill `terrine run` at moments spread evenly over its life, run it again, and look at what came of it.

    make crash                       # 200 kills: hours
    python benchmarks/crash.py --kills 20 --no-server

Each kill has a fresh project. SIGKILL goes to the process alone, as from a kernel that wants memory, and every other
time to all that it started as well, as when a machine stops. Then the same command is given once more, and it must
complete, with one charge, the same ε, nothing for DVC to do, no temporary file and no process left. Prints the table of
docs/reliability.md; the projects of what failed stay.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
SMALL = {
    "description": "digits with few teachers and few queries",
    "data": {"name": "digits", "size": 8},
    "partition": {"teachers": 12},
    "queries": {"count": 120, "batch": 20},
    "backbone": {"projection": 60},
    "teachers": {"per_task": 5},
    "aggregation": {"mechanism": "histogram", "sigma": 6, "epsilon": 8},
    "tracking": {"register_student": False},
}
FAULTS = ("not completed", "traceback", "charges", "another ε", "DVC not clean", "leftovers", "processes")
PATIENCE = 900.0
"""Seconds after which a run counts as wedged."""


def small_project(folder: Path) -> Path:
    """Lay out a project as a fresh clone has it, with a small preset; tests of flows begin with it, too."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("params.yaml", "dvc.yaml", ".dvcignore"):
        shutil.copy(REPOSITORY / name, folder)
    (folder / ".dvc").mkdir()
    for name in ("config", ".gitignore"):
        shutil.copy(REPOSITORY / ".dvc" / name, folder / ".dvc")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "small.yaml").write_text(yaml.safe_dump(SMALL))
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def environment(project: Path) -> dict[str, str]:
    """Return the environment of a command in a project, without a Prefect server of the user's."""
    clean = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    return clean | {"TERRINE_ROOT": str(project), "PYTHONPATH": str(REPOSITORY), "PATH": path}


def command(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a project to its end."""
    own = {"cwd": project, "env": environment(project), "capture_output": True, "text": True, "check": False}
    try:
        return subprocess.run([*arguments], timeout=PATIENCE, **own)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, -1, "", "did not end")


def kill_after(project: Path, seconds: float, run: list[str], *, everything: bool) -> str:
    """Start a run, kill it after so many seconds, and return the stage that it was at."""
    with open(project / "killed.log", "wb") as log:
        process = subprocess.Popen(
            run, cwd=project, env=environment(project), stdout=log, stderr=log, start_new_session=True
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            below = psutil.Process(process.pid).children(recursive=True) if everything else []
            process.kill()
            for child in below:
                child.kill()
            process.wait()
    lines = (project / "killed.log").read_text(errors="replace").splitlines()
    (project / "killed.log").unlink()
    if process.returncode == 0:
        return "after its end"
    made = [found[1] for line in lines if (found := re.match(r" *\d+/\d+ (\S+)", line))]
    return f"after {made[-1]}" if made else "before its first stage's end"


def faults(project: Path, done: subprocess.CompletedProcess[str], epsilon: float | None) -> set[str]:
    """Return what is wrong with a project whose run was killed and run again."""
    found = set()
    if done.returncode:
        return {"not completed"} | ({"traceback"} if "Traceback" in done.stdout + done.stderr else set())
    if "Traceback" in done.stdout + done.stderr:
        found.add("traceback")
    (account,) = json.loads(command(project, "terrine", "ledger", "show", "--json").stdout)
    if len(account["releases"]) != 1:
        found.add("charges")
    if epsilon_of(project) != epsilon:
        found.add("another ε")
    status = command(project, "dvc", "status", "--json", "selected/dvc.yaml")
    if status.returncode or json.loads(status.stdout):
        found.add("DVC not clean")
    if [path for kind in (".*.tmp", ".*.old", "terrine/server-*") for path in project.rglob(kind)]:
        found.add("leftovers")
    if processes_of(project):
        found.add("processes")
    return found


def epsilon_of(project: Path) -> float:
    """Return the ε that the run's statement names."""
    return json.loads((project / "data" / "release" / "small" / "privacy.json").read_text())["epsilon"]


def processes_of(project: Path) -> list[psutil.Process]:
    """Return the processes that work for a project."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TERRINE_ROOT") == str(project):
                found.append(process)
        except psutil.Error:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--no-server", action="store_true", help="without Prefect")
    parser.add_argument("--seed", type=int, default=0, help="of the moments within their parts of the life")
    arguments = parser.parse_args()
    run = ["terrine", "run", "--preset", "small", *(["--no-server"] if arguments.no_server else [])]
    folder = Path(tempfile.mkdtemp(prefix="terrine-crash-"))
    whole = small_project(folder / "whole")
    began = time.monotonic()
    done = command(whole, *run)
    life = time.monotonic() - began
    if done.returncode or (bad := faults(whole, done, epsilon_of(whole))):
        sys.exit(f"A run that nobody kills fails: {done.stdout}{done.stderr}{bad if not done.returncode else ''}")
    print(f"A run takes {life:.1f} s, ε = {epsilon_of(whole)}. Projects: {folder}", flush=True)
    where, wrong, rng = Counter[str](), Counter[str](), random.Random(arguments.seed)
    for number in range(arguments.kills):
        project = small_project(folder / f"kill-{number}")
        seconds = (number + rng.random()) / arguments.kills * life
        stage = kill_after(project, seconds, run, everything=number % 2 == 1)
        bad = faults(project, command(project, *run), epsilon_of(whole))
        where[stage] += 1
        wrong.update(bad)
        print(f"{number + 1:4} at {seconds:6.1f} s, {stage}: {', '.join(sorted(bad)) or 'well'}", flush=True)
        if not bad:
            shutil.rmtree(project)
        for process in processes_of(project):
            process.send_signal(signal.SIGKILL)
    print("\n| killed | times |\n|---|---:|")
    print("\n".join(f"| {stage} | {times} |" for stage, times in where.items()))
    print("\n| of them | times |\n|---|---:|")
    print("\n".join(f"| {fault} | {wrong[fault]} |" for fault in FAULTS))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
