"""Overhead of the fan-out: empty tasks on threads, processes, Dask (and Ray, if installed).

    python -m benchmarks.fanout --parts 100 --workers 2
    python -m benchmarks.fanout --candidates 20 --repeats 2

Two figures per runner: seconds until the first part is done (workers start and import Terrine) and milliseconds per
further part. The reference, in the same run, is a plain loop over the same function.

With `--candidates`, a sweep of that number of small runs on digits instead, each way in a fresh project and a fresh
process,
in turns (`--ways` chooses). Seconds are from the command to its end, the start of a cluster that stands included.
"""

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flows.environment import prepare_environment

prepare_environment()

from prefect import flow  # noqa: E402
from prefect.testing.utilities import prefect_test_harness  # noqa: E402

from benchmarks.cells import common_options, heading, row  # noqa: E402
from benchmarks.crash.project import environment, small_project  # noqa: E402
from flows.execution import Executor, executor  # noqa: E402
from flows.runners import local_cluster  # noqa: E402
from tasks.config.params import validate  # noqa: E402
from tasks.config.sections import Runner  # noqa: E402
from tasks.runtime.run import Run  # noqa: E402
from tasks.runtime.step import step  # noqa: E402
from terrine.errors import SettingError  # noqa: E402


@step("nothing")
def nothing(run: Run, teachers: range) -> None:
    """Do what a group does that is on disk already: look for a file."""
    (run.root / f"group-{teachers.start}").is_file()


def seconds_of(kind: str, workers: int, parts: int, run: Run) -> tuple[float, float]:
    """Return the seconds until one part is done, and the seconds of `parts` more on the same workers."""
    measured: list[float] = []

    @flow(name=f"fan-out on {kind}")
    def fan_out() -> None:
        with executor(Runner(kind=kind, workers=workers), "auto", fans_out=True) as execute:  # type: ignore[arg-type]
            for count in (1, parts):
                start = time.perf_counter()
                execute.map(
                    nothing, [(run, range(part, part + 1)) for part in range(count)], [str(p) for p in range(count)]
                )
                measured.append(time.perf_counter() - start)

    fan_out()
    return measured[0], measured[1]


def seconds_of_sweep(candidates: int, workers: int, *, dask: bool, standing: bool) -> tuple[float, float]:
    """Make a sweep in a fresh project; return its seconds, and those of the processors for all that it started.

    dask: use Dask for each run. standing: share one Dask cluster among the runs, instead of one for each.
    """
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="terrine-sweep-") as folder, contextlib.ExitStack() as held:
        project = small_project(Path(folder) / "project")
        seeds = ",".join(map(str, range(candidates)))
        words = ["sweep", "--preset", "small", "--vary", f"seed={seeds}"]
        words += ["--set", "runner.kind=dask"] if dask else []
        if standing:
            address = held.enter_context(local_cluster(WORKERS)).scheduler_address
            words += ["--set", f"runner.address={address}"]
        words += ["--workers", str(workers)]
        program = [sys.executable, "-m", "flows", *words]
        done = subprocess.run(
            program, cwd=project, env=environment(project), capture_output=True, text=True, check=False
        )
        made = len(list(project.glob("data/release/*/privacy.json")))
        if done.returncode or made != candidates:
            sys.exit(f"{made} of {candidates} runs were made.\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, spent


WORKERS = 2
WAYS = {
    "one after the other": {"workers": 1, "dask": False, "standing": False},
    f"{WORKERS} at once, in processes": {"workers": WORKERS, "dask": False, "standing": False},
    f"{WORKERS} at once, on one Dask cluster": {"workers": WORKERS, "dask": True, "standing": True},
    "in turns, a Dask cluster for each": {"workers": 1, "dask": True, "standing": False},
}


def sweeps(candidates: int, repeats: int, ways: list[str]) -> None:
    """Make the sweep in these ways, in turns, and print a Markdown table of medians."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS if any(part in way for part in ways)}
    for _ in range(repeats):
        for way in found:
            found[way].append(seconds_of_sweep(candidates, **WAYS[way]))
            clock, spent = found[way][-1]
            print(f"{way}: {clock:.1f} s, {spent:.1f} s of the processors, load {os.getloadavg()[0]:.1f}", flush=True)
    heading(f"{candidates} runs", "seconds", "of the first row", "a run, s", "seconds of the processors")
    medians = {way: [statistics.median(column) for column in zip(*each, strict=True)] for way, each in found.items()}
    first = next(iter(medians.values()))[0]
    for way, (clock, spent) in medians.items():
        row(way, f"{clock:.0f}", f"{clock / first:.2f} times", f"{clock / candidates:.1f}", f"{spent:.0f}")


def main() -> None:
    """Measure every runner, or every way of a sweep, and print a Markdown table."""
    parser = common_options(__doc__, repeats=1)
    parser.add_argument("--candidates", type=int, help="Measure a sweep of `count` runs instead.")
    parser.add_argument("--ways", nargs="+", default=[""], help="Parts of the names of ways of a sweep.")
    parser.add_argument("--parts", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runners", nargs="+", default=["threads", "processes", "dask"])
    arguments = parser.parse_args()
    if arguments.candidates:
        sweeps(arguments.candidates, arguments.repeats, arguments.ways)
        return
    with tempfile.TemporaryDirectory() as folder, prefect_test_harness(server_startup_timeout=180):
        run = Run(Path(folder), "nothing", validate({"data": {"public_benchmark": True}}))
        calls = [(run, range(part, part + 1)) for part in range(arguments.parts)]
        start = time.perf_counter()
        Executor().map(nothing, calls, [str(part) for part in range(arguments.parts)])
        loop = time.perf_counter() - start
        rows = [("plain loop, no Prefect", 0.0, loop)]
        for kind in arguments.runners:
            try:
                rows.append((kind, *seconds_of(kind, arguments.workers, arguments.parts, run)))
            except SettingError as error:
                print(error)
    print(f"\n{arguments.parts} parts that do nothing, {arguments.workers} workers")
    heading("runner", "first part, s", "each further part, ms")
    for name, first, rest in rows:
        row(name, f"{first:.2f}", f"{1000 * rest / arguments.parts:.2f}")


if __name__ == "__main__":
    main()
