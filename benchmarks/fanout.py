"""What the fan-out itself costs: parts that do nothing, carried by threads, processes, Dask (and Ray, if installed).

    python benchmarks/fanout.py --parts 100 --workers 2

Two figures per runner: seconds until the first part is done (workers start and import Terrine) and milliseconds per
further part. The reference, in the same run, is a plain loop over the same function.
"""

import tempfile
import time
from pathlib import Path

from flows.environment import prepare_environment

prepare_environment()

from cells import common_options, heading, row  # noqa: E402
from prefect import flow  # noqa: E402
from prefect.testing.utilities import prefect_test_harness  # noqa: E402

from flows.execution import InFlow, InProcess  # noqa: E402
from flows.runners import task_runner  # noqa: E402
from tasks.config.params import validate  # noqa: E402
from tasks.config.runner import Runner  # noqa: E402
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

    @flow(name=f"fan-out on {kind}", task_runner=task_runner(Runner(kind=kind, workers=workers)))  # type: ignore[arg-type]
    def fan_out() -> None:
        for count in (1, parts):
            start = time.perf_counter()
            InFlow().map(
                nothing, [(run, range(part, part + 1)) for part in range(count)], [str(p) for p in range(count)]
            )
            measured.append(time.perf_counter() - start)

    fan_out()
    return measured[0], measured[1]


def main() -> None:
    """Measure every runner and print a Markdown table."""
    parser = common_options(__doc__)
    parser.add_argument("--parts", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runners", nargs="+", default=["threads", "processes", "dask"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, prefect_test_harness(server_startup_timeout=180):
        run = Run(Path(folder), "nothing", validate({"data": {"public_benchmark": True}}))
        calls = [(run, range(part, part + 1)) for part in range(arguments.parts)]
        start = time.perf_counter()
        InProcess().map(nothing, calls, [str(part) for part in range(arguments.parts)])
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
