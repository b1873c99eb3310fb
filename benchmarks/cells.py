"""Shared parts of benchmarks: options, a results cache, mean and deviation, tables, timing, the datasets' folder."""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np


class Cells:
    """A results cache: one line of JSON per key, so an interrupted table goes on.

    A killed process loses at most one cell, and several processes may append to one file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._known: dict[str, dict[str, Any]] = {}
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text and not text.endswith("\n"):  # the disk was full
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")
        for line in text.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                figures = json.loads(line)
                self._known[figures["cell"]] = figures

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def get(self, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a cell's figures, computed if they are missing, with the `seconds` that took."""
        if key not in self._known:
            start = time.monotonic()
            line = {"cell": key, **compute(), "seconds": round(time.monotonic() - start, 2)}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self._known[key] = line
            figures = [f"{name} {value:.4g}" for name, value in line.items() if isinstance(value, int | float)]
            print(f"{key}: {', '.join(figures)}", file=sys.stderr)
        return self._known[key]


def spread(values: Iterable[float], digits: int = 1, scale: float = 100.0, *, signed: bool = False) -> str:
    """Return mean ± standard deviation over seeds (of one value, the value) in per cent, or times `scale`."""
    found = scale * np.array(list(values))
    mean = f"{found.mean():{'+' if signed else ''}.{digits}f}"
    return f"{mean} ± {found.std(ddof=1):.{digits}f}" if len(found) > 1 else mean


def datasets() -> Path:
    """Default folder of datasets, see --root."""
    return Path(os.environ.get("TERRINE_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "datasets"


KEPT = Path("data/private/benchmarks")
"""Default folder of the benchmarks' results, see --work."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "root": {"type": Path},
    "work": {"type": Path},
    "seeds": {"type": int, "nargs": "+"},
    "repeats": {"type": int},
    "set": {"action": "append", "help": "override of a preset, as in terrine run"},
}


def common_options(doc: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser whose help is the script's docstring, with the named ones of the options above and their defaults."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        made.add_argument(f"--{name}", default=default, **_OPTIONS[name])
    return made


def heading(*columns: str) -> None:
    """Print the head of a Markdown table."""
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def row(*cells: object) -> None:
    """Print a row of one."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def times(work: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> np.ndarray:
    """Measure the seconds of each of `repeats` calls, by the wall clock or another."""
    found = []
    for _ in range(repeats):
        start = clock()
        work()
        found.append(clock() - start)
    return np.array(found)
