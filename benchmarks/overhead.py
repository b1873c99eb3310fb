"""Overhead of `terrine run` beyond its stages, in wall and processor seconds, Prefect's server included.

    python -m benchmarks.overhead --preset terrine-digits [--set data.root=...] [--repeats 3] [--code OTHER_CHECKOUT]

Each run is made in a fresh project by a fresh process. Time from the start to the end of a stage's tasks belongs to the
stage. All other time is overhead: imports, the server, state that Prefect keeps, DVC, the end. `--code` alternates
between another checkout and this one, because the load of a shared machine varies.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.cells import common_options, heading, row
from benchmarks.crash.project import REPOSITORY, environment, small_project

MEASURED = """
import atexit, json, os, sys, time
import flows.stages as stages
plain, spent = stages.run_tasks, {"clock": 0.0, "processors": 0.0}
def run_tasks(*given):
    clock, before = time.perf_counter(), os.times()
    try:
        plain(*given)
    finally:
        spent["clock"] += time.perf_counter() - clock
        spent["processors"] += sum(os.times()[:4]) - sum(before[:4])
stages.run_tasks = run_tasks
report = os.path.abspath("overhead.json")
atexit.register(lambda: open(report, "w").write(json.dumps(spent)))
from flows.__main__ import main
main()
"""


def seconds_of(code: Path, command: list[str]) -> dict[str, float]:
    """Make a run with the code of a checkout, and return the seconds beyond its stages and those in them."""
    with tempfile.TemporaryDirectory(prefix="terrine-overhead-") as folder:
        project = small_project(Path(folder) / "project")
        for preset in (code / "experiments").glob("*.yaml"):
            (project / "experiments" / preset.name).write_bytes(preset.read_bytes())
        own = environment(project) | {"PYTHONPATH": str(code)}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        program = [sys.executable, "-c", MEASURED, *command]
        done = subprocess.run(program, cwd=project, env=own, capture_output=True, text=True, check=False)
        clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}")
        stages = json.loads((project / "overhead.json").read_text())
    processors = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "clock": clock - stages["clock"],
        "processors": processors - stages["processors"],
        "stages, clock": stages["clock"],
        "stages, processors": stages["processors"],
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Print a row of a Markdown table for each checkout: medians, and the least of all repeats."""
    parser = common_options(__doc__, repeats=3, set=[])
    parser.add_argument("--preset", default="terrine-digits")
    parser.add_argument("--no-server", action="store_true")
    parser.add_argument("--code", type=Path, action="append", default=[], help="another checkout, measured in turns")
    arguments = parser.parse_args()
    command = ["run", "--preset", arguments.preset, *(f"--set={each}" for each in arguments.set)]
    command += ["--no-server"] if arguments.no_server else []
    checkouts = [*arguments.code, REPOSITORY]
    found: dict[Path, list[dict[str, float]]] = {code: [] for code in checkouts}
    for _ in range(arguments.repeats):
        for code in checkouts:
            found[code].append(seconds_of(code, command))
            print(code, {name: round(value, 1) for name, value in found[code][-1].items()}, file=sys.stderr, flush=True)
    heading("code", "beyond the stages, s", "at least", "of the processors, s", "at least", "stages, s", "load")
    figures = [("clock", np.median), ("clock", min), ("processors", np.median), ("processors", min)]
    figures += [("stages, clock", np.median), ("load", np.median)]
    for code, runs in found.items():
        row(code.name, *(f"{figure([run[name] for run in runs]):.1f}" for name, figure in figures))


if __name__ == "__main__":
    main()
