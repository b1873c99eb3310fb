"""Duration of a vote or a sum of many parties: two services, TLS, a garbled circuit, one machine.

    python benchmarks/collaboration.py [--preset terrine-mnist] [--parties 50] [--queries 2000] [--mechanism confident]
                                       [--root FOLDER] [--work FOLDER] [--set KEY=VALUE ...]

A run of the preset is made up to its votes. Then its aggregate stage runs twice with the same replayed noise: by
parties, guardian and student party a process each, and locally in this process, the plain reference. Labels (of moments
and gradients, all sums, to the bit) and exact ε must be the same, or the script fails. Printed is a Markdown table:
seconds of the stage by parties and locally, and the peak memory of the larger service. Records are summed over vectors
that exist; each party would compute its own, which is timed separately.

`--root` (default: $TERRINE_SHARED/datasets) holds MNIST; `--preset terrine-digits` needs nothing.
"""

import argparse
import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cells import common_options, datasets, heading, row

from flows.stages import run_through
from tasks.artefacts.released import SUMS
from tasks.artefacts.teachers import read_votes
from tasks.config.params import parse_assignment, validate
from tasks.config.presets import load_values, resolve
from tasks.pipeline import aggregate
from tasks.pipeline.sums import split_records
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, read_table, read_tensors
from terrine.aggregation.votes import count_votes

REPOSITORY = Path(__file__).resolve().parents[1]

MECHANISMS: dict[str, dict[str, Any]] = {
    "confident": {"sigma": None, "threshold": 0.75, "sigma1": 0.6, "sigma2": 0.2},
    "gnmax": {"sigma": 0.2},
    "histogram": {"sigma": 0.2},
    "moments": {"sigma": None},
    "gradients": {"sigma": None},
}
"""Parameters as shares of the teachers; confident is that of DIET-PATE (Anonymous 2025) on MNIST."""
SUMMED = ("moments", "gradients")


class GuardiansNoise:
    """The guardian's noise for the plaintext mechanism: drawn for all queries, on counts in whole votes."""

    def __init__(self, noise: Any, passed: np.ndarray | None) -> None:
        self._noise, self._passed, self.kind, self.describe = noise, passed, noise.kind, noise.describe

    def gaussian(self, shape: Any, sigma: float) -> np.ndarray:
        """See `terrine.privacy.noise.NoiseSource.gaussian`."""
        if isinstance(shape, int):
            return self._noise.gaussian(shape, sigma)
        rows = shape[0] if self._passed is None else len(self._passed)
        drawn = np.floor(self._noise.gaussian((rows, shape[1]), sigma) + 0.5)
        return drawn if self._passed is None else drawn[self._passed]


class PeakMemory:
    """The most resident memory that any child of this process had, looked at ten times a second (Linux)."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            for children in Path("/proc/self/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    for child in children.read_text().split():
                        self.megabytes = max(self.megabytes, self._peak(child))

    @staticmethod
    def _peak(process: str) -> float:
        with contextlib.suppress(OSError):
            # A child that has not begun its own program yet shows this process's memory.
            if b"tasks.parties.service" not in Path(f"/proc/{process}/cmdline").read_bytes():
                return 0.0
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    return int(line.split()[1]) / 1024
        return 0.0


def make_run(root: Path, options: argparse.Namespace, where: str) -> Run:
    """Return the run: the preset with the chosen mechanism and number of queries."""
    teachers = resolve(REPOSITORY, options.preset).partition.teachers
    shares = MECHANISMS[options.mechanism]
    noise = {key: share * teachers for key, share in shares.items() if share is not None}
    values = load_values(
        REPOSITORY,
        options.preset,
        {"data": {"root": str(options.root)}, "queries": {"count": options.queries}},
        {"aggregation": {"mechanism": options.mechanism, "noise": "replay", "epsilon": 20, "where": where, **noise}},
        {"collaboration": {"parties": options.parties, "deadline": 600}},
        *([{"student": {"kind": "sums"}}] if options.mechanism in SUMMED else []),
        *map(parse_assignment, options.set),
    )
    return Run(root, "votes", validate(values))


def release(run: Run) -> tuple[float, Any, dict[str, Any]]:
    """Run the aggregate stage; return its seconds, the answers and the statement."""
    start = time.perf_counter()
    aggregate.release_answers.fn(run)
    seconds = time.perf_counter() - start
    answers: Any
    if run.params.aggregation.mechanism in SUMMED:
        answers = pd.Series({key: array.tobytes() for key, array in read_tensors(run.folders.answers / SUMS).items()})
    else:
        answers = read_table(run.folders.answers / "answers.parquet")
    return seconds, answers, read_json(run.folders.statement)


def plain_reference(run: Run) -> tuple[float, Any, dict[str, Any]]:
    """Release the same votes in this process with the guardian's noise."""
    settings, passed = run.params.aggregation, None
    if settings.mechanism in SUMMED:
        return release(run)
    counts = count_votes(read_votes(run.folders), 10)
    if settings.mechanism == "confident":
        eta = aggregate.noise_source(run).gaussian(len(counts), settings.sigma1)
        passed = counts.max(axis=1) + eta >= settings.threshold
    noise = GuardiansNoise(aggregate.noise_source(run), passed)
    original, aggregate.noise_source = aggregate.noise_source, lambda _: noise
    try:
        return release(run)
    finally:
        aggregate.noise_source = original


def main() -> None:
    parser = common_options(__doc__, root=datasets(), work=None, set=[])
    parser.add_argument("--preset", default="terrine-mnist")
    parser.add_argument("--parties", type=int, default=50)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--mechanism", default="confident", choices=list(MECHANISMS))
    options = parser.parse_args()
    options.root = options.root.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        root = (options.work or Path(temporary)).resolve()
        run = make_run(root, options, "parties")
        start = time.perf_counter()
        if not run.folders.votes.is_dir():
            run_through(run, "dataset", "vote")
        print(f"votes of {run.params.partition.teachers} teachers: {time.perf_counter() - start:.0f} s", flush=True)
        if options.mechanism in SUMMED:
            start = time.perf_counter()
            split_records(run, {"all": run.params.partition.teachers})
            print(f"vectors of all records, and their sums: {time.perf_counter() - start:.0f} s", flush=True)
        with PeakMemory() as memory:
            apart, answers, statement = release(run)
        together, plain_answers, plain_statement = plain_reference(make_run(root, options, "local"))
        same = ("epsilon", "event", "queried", "answered")
        if not plain_answers.equals(answers) or any(statement[key] != plain_statement[key] for key in same):
            raise SystemExit("The parties released something else than the plaintext mechanism with the same noise.")
        print(f"\n{os.cpu_count()} cores; same labels and exact ε as locally with the same noise")
        told = {"teachers": "teachers", "queries": "queried", "answered": "answered", "exact ε": "epsilon"}
        heading("mechanism", "parties", *told, "by parties, s", "local, s", "MB at most")
        figures = [statement[key] for key in told.values()]
        seconds = (f"{apart:.1f}", f"{together:.1f}")
        row(options.mechanism, f"{options.parties} + 2", *figures, *seconds, f"{memory.megabytes:.0f}")


if __name__ == "__main__":
    main()
