"""Figures by key, kept in a file: a long table of measurements goes on where it was interrupted."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np


class Cells:
    """Figures by key, one line of JSON each: what is there is not made again, so an interrupted table goes on.

    A killed process loses one cell at most, and several may add to one file. Its folder is there from the start:
    whoever computes a cell may keep more beside it.
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
        """Return a cell's figures, made now if they are not there; `seconds` says what they took."""
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
    """Mean ± standard deviation over seeds, of a single value the value alone; in per cent unless `scale` says else."""
    found = scale * np.array(list(values))
    mean = f"{found.mean():{'+' if signed else ''}.{digits}f}"
    return f"{mean} ± {found.std(ddof=1):.{digits}f}" if len(found) > 1 else mean
