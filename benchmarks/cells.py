"""What several benchmarks share: options, figures that are kept, their spread, tables, seconds, where data lie."""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tasks.tools.cells import Cells, spread

__all__ = ["KEPT", "Cells", "common_options", "datasets", "heading", "row", "spread", "times"]


def datasets() -> Path:
    """Where datasets lie unless --root says otherwise."""
    return Path(os.environ.get("TERRINE_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "datasets"


KEPT = Path("data/private/benchmarks")
"""Where most benchmarks keep their figures unless --work says otherwise."""

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
    """Seconds of each of so many calls, by the wall's clock or another."""
    found = []
    for _ in range(repeats):
        start = clock()
        work()
        found.append(clock() - start)
    return np.array(found)
