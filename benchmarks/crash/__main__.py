"""Make parts of the crash suite: see the package."""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from flows.environment import prepare_environment

prepare_environment()

from benchmarks.crash.checks import FAULTS  # noqa: E402
from benchmarks.crash.disks import full_disks  # noqa: E402
from benchmarks.crash.kills import kill_runs  # noqa: E402
from benchmarks.crash.parties import kill_parties  # noqa: E402
from benchmarks.crash.power import cut_lines  # noqa: E402
from benchmarks.crash.together import ten_runs  # noqa: E402

Suite = Callable[[Path, int, int], tuple[Counter[str], Counter[str]]]
SUITES: dict[str, tuple[int, Suite]] = {
    "runs": (200, lambda folder, times, seed: kill_runs(folder, "small", times, seed)),
    "transcriptions": (100, lambda folder, times, seed: kill_runs(folder, "transcribed", times, seed)),
    "parties": (6, lambda folder, times, _: kill_parties(folder, times)),
    "disks": (30, full_disks),
    "power": (20, cut_lines),
    "together": (1, lambda folder, *_: ten_runs(folder)),
}
"""By name: how often, and what is done. Of parties so often at each of 52 moments, of disks in each stage."""


def main() -> None:
    """Do it and print two tables; the exit status is 1 where something was wrong. Projects of what failed stay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=SUITES)
    parser.add_argument("--times", type=int)
    parser.add_argument("--seed", type=int, default=0, help="of the moments within their parts of the life")
    arguments = parser.parse_args()
    times, suite = SUITES[arguments.what]
    folder, began = Path(tempfile.mkdtemp(prefix=f"terrine-crash-{arguments.what}-")), time.monotonic()
    where, wrong = suite(folder, arguments.times or times, arguments.seed)
    print(f"\n| {arguments.what} | times |\n|---|---:|")
    print("\n".join(f"| {place} | {count} |" for place, count in sorted(where.items())))
    print("\n| of them | times |\n|---|---:|")
    print("\n".join(f"| {fault} | {wrong[fault]} |" for fault in dict.fromkeys([*FAULTS, *wrong])))
    print(f"\n{time.monotonic() - began:.0f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
