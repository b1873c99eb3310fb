"""Progress of stages on the terminal, in Prefect and in the log; seconds and memory of stages."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast
from uuid import UUID

import psutil

from tasks.runtime.run import Run
from tasks.runtime.step import in_context
from tasks.runtime.store import read_json, write_json

SECONDS_BETWEEN_LINES = 30.0
"""Interval between two progress lines in the log, in seconds."""


class StageProgress:
    """The current stage of this process and its progress, as reported by tasks and read by the progress bar.

    If the stage reports its own progress, task progress is ignored. Otherwise progress is the number of finished parts
    of a fan-out, or the sum of the parts' own reports if that is larger.
    """

    def __init__(self) -> None:
        self.has_lines = True
        self.begin("")

    def begin(self, stage: str) -> None:
        """Start the progress of a stage."""
        self.stage = stage
        self._own: float | None = None
        self._parts, self._finished = 0, 0
        self._fractions: dict[str, float] = {}

    @property
    def fraction(self) -> float | None:
        """Completed fraction of the stage in [0, 1], or None if nothing has been reported."""
        if self._own is not None or not self._parts:
            return self._own
        return min(1.0, max(self._finished, sum(list(self._fractions.values()))) / self._parts)

    def report(self, key: str, fraction: float) -> None:
        """Report the completed fraction of the stage or, during a fan-out, of the part named `key`."""
        if self._parts:
            self._fractions[key] = fraction
        else:
            self._own = fraction

    @contextmanager
    def within_more(self) -> Iterator[None]:
        """Suppress the stages' progress lines within the block, because its caller reports progress."""
        self.has_lines = False
        try:
            yield
        finally:
            self.has_lines = True

    @contextmanager
    def fan_out(self, parts: int) -> Iterator[Callable[[], None]]:
        """Split the stage into `parts` within the block. Yields a function to call whenever a part is finished."""
        self._parts, self._finished, self._fractions = parts, 0, {}

        def one_finished() -> None:
            self._finished += 1

        try:
            yield one_finished
        finally:
            self._parts = 0


CURRENT = StageProgress()
"""The current stage of this process."""


def progress_reporter(run: str, key: str) -> Callable[[float, str], None]:
    """Return a function (fraction, text) that reports progress on the terminal, in Prefect and in the log.

    Args:
        run: Name of the run.
        key: Name of the work.
    """
    show, say = _page_and_log(f"{run}-{key}") if in_context("TaskRunContext") else (None, partial(print, flush=True))
    line = lines(key, say) if CURRENT.has_lines else None

    def report(fraction: float, text: str) -> None:
        CURRENT.report(key, fraction)
        if show is not None:
            show(100 * fraction, text)
        if line is not None:
            line(fraction, text)

    return report


def lines(key: str, say: Callable[[str], object]) -> Callable[[float, str], None]:
    """Return a function (fraction, text) that logs at the start, at the end and every `SECONDS_BETWEEN_LINES`."""
    last_line = -math.inf

    def report(fraction: float, text: str) -> None:
        nonlocal last_line
        if fraction >= 1 or time.monotonic() - last_line >= SECONDS_BETWEEN_LINES:
            last_line = time.monotonic()
            say(f"{key}: {100 * fraction:5.1f} %  {text}")

    return report


def _page_and_log(key: str) -> tuple[Callable[[float, str], object], Callable[[str], object]]:
    """Return a function (percent, text) that creates or updates a Prefect artifact, and one that logs a line."""
    from prefect import get_run_logger
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    artifact: UUID | None = None

    def show(percent: float, text: str) -> None:
        nonlocal artifact
        if artifact is None:  # created here, so that work without reports has no page
            artifact = cast(UUID, create_progress_artifact(progress=percent, key=key, description=text))
        else:
            update_progress_artifact(artifact_id=artifact, progress=percent, description=text)

    return show, get_run_logger().info


INTERVAL = 0.2


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
    """Measure seconds and peak memory of a stage, and store them in a private folder that DVC does not track."""
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


def total_seconds(run: Run) -> float:
    """Return the duration of all stages except the report, in which MLflow logs the figure."""
    return round(sum(record["seconds"] for stage, record in timings(run).items() if stage != "report"), 1)


def timings(run: Run) -> dict[str, dict[str, float]]:
    """Return seconds and memory of each stage in its last execution."""
    files = sorted(run.folders.timings.glob("*.json")) if run.folders.timings.is_dir() else []
    return {record["stage"]: record for record in map(read_json, files)}
