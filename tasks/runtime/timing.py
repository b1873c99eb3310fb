"""What a stage cost: seconds of wall clock and the most memory it held."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_json

INTERVAL = 0.05


@dataclass
class _Peak:
    bytes: int = 0


def _sample(peak: _Peak, stop: threading.Event) -> None:
    process = psutil.Process()
    while True:
        with_children = process.memory_info().rss
        for child in process.children(recursive=True):
            try:
                with_children += child.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        peak.bytes = max(peak.bytes, with_children)
        if stop.wait(INTERVAL):
            return


@contextmanager
def measured(run: Run, stage: str) -> Iterator[None]:
    """Measure a stage and keep the figures in the run's private folder, outside what DVC compares."""
    peak, stop = _Peak(), threading.Event()
    sampler = threading.Thread(target=_sample, args=(peak, stop), daemon=True)
    started = time.perf_counter()
    sampler.start()
    try:
        yield
    finally:
        stop.set()
        sampler.join()
    seconds = time.perf_counter() - started
    write_json(
        run.folders.timings / f"{stage}.json",
        {"stage": stage, "seconds": round(seconds, 3), "memory_mb": round(peak.bytes / 2**20)},
    )


def timings(run: Run) -> dict[str, dict[str, float]]:
    """Return what each stage cost when it last ran."""
    files = sorted(run.folders.timings.glob("*.json")) if run.folders.timings.is_dir() else []
    return {record["stage"]: record for record in map(read_json, files)}
