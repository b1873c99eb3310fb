"""Make parts of the crash suite: see the package."""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from flows.environment import prepare_environment

prepare_environment()

from benchmarks.crash.disks import full_disks  # noqa: E402
from benchmarks.crash.kills import kill_runs  # noqa: E402
from benchmarks.crash.parties import kill_parties  # noqa: E402
from benchmarks.crash.power import cut_lines  # noqa: E402
from benchmarks.crash.project import STARTED  # noqa: E402
from benchmarks.crash.tally import Tally  # noqa: E402
from benchmarks.crash.together import ten_runs  # noqa: E402

Suite = Callable[[Path, int, int, Tally], None]
SUITES: dict[str, tuple[int, Suite]] = {
    "runs": (200, lambda folder, times, seed, tally: kill_runs(folder, "small", times, seed, tally)),
    "transcriptions": (100, lambda folder, times, seed, tally: kill_runs(folder, "transcribed", times, seed, tally)),
    "parties": (6, lambda folder, times, _, tally: kill_parties(folder, times, tally)),
    "disks": (30, full_disks),
    "power": (20, cut_lines),
    "together": (1, lambda folder, times, _, tally: ten_runs(folder, times, tally)),
}
"""Default repetitions and function of each suite. `parties` repeats at each moment, `disks` in each stage."""


def main() -> None:
    """Do it and print two tables; the exit status is 1 where something was wrong. Projects of what failed stay.

    Stopped (control-C or SIGTERM) it ends what it started and prints the tables of what it has seen.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=SUITES)
    parser.add_argument("--times", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the moments within their parts of the life")
    parser.add_argument("--kept", type=Path, help="folder of what each time came to; given again, it goes on there")
    arguments = parser.parse_args()
    times, suite = SUITES[arguments.what]
    folder, began = Path(tempfile.mkdtemp(prefix=f"terrine-crash-{arguments.what}-")), time.monotonic()
    kept = (arguments.kept or folder) / f"{arguments.what}.jsonl"
    print(f"Projects lie in {folder}, what each time came to in {kept}", flush=True)
    tally, stopped = Tally(kept), False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        suite(folder, arguments.times or times, arguments.seed, tally)
    except KeyboardInterrupt:
        stopped = True
    finally:
        for command in list(STARTED):
            command.kill(everything=True)
        print(tally.tables(arguments.what), flush=True)
        print(f"\n{'stopped after ' if stopped else ''}{time.monotonic() - began:.0f} s")
    sys.exit(1 if tally.wrong else 130 if stopped else 0)


if __name__ == "__main__":
    main()
