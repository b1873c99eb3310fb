"""Progress of long work: on the terminal, on Prefect's page where there is a server, and in the log everywhere."""

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
from tasks.runtime.step import prefect_is_here
from tasks.runtime.store import read_json, write_json

SECONDS_BETWEEN_LINES = 30.0
"""How often the log says how far a long work is."""


class StageProgress:
    """Which stage this process is at, and how far it is: told by tasks and fan-outs, looked at by what draws a bar.

    What a stage reports by itself counts alone. Where it reports nothing, the finished parts of a fan-out count, or
    what parts in this process have reported where that is more.
    """

    def __init__(self) -> None:
        self.has_lines = True
        self.begin("")

    def begin(self, stage: str) -> None:
        """Go to a stage of a run, of which nothing is done yet."""
        self.stage = stage
        self._own: float | None = None
        self._parts, self._finished = 0, 0
        self._told: dict[str, float] = {}

    @property
    def fraction(self) -> float | None:
        """How much of the stage is done, from 0 to 1; None where nothing has been told."""
        if self._own is not None or not self._parts:
            return self._own
        return min(1.0, max(self._finished, sum(list(self._told.values()))) / self._parts)

    def report(self, key: str, fraction: float) -> None:
        """Say how far the work named `key` is: the stage's own, or during a fan-out that of one part."""
        if self._parts:
            self._told[key] = fraction
        else:
            self._own = fraction

    @contextmanager
    def within_more(self) -> Iterator[None]:
        """Have stages print no lines until the block ends: they are parts of a work that says how far it is."""
        self.has_lines = False
        try:
            yield
        finally:
            self.has_lines = True

    @contextmanager
    def fan_out(self, parts: int) -> Iterator[Callable[[], None]]:
        """Spread the stage over `parts` until the block ends; what is yielded is called whenever one is finished."""
        self._parts, self._finished, self._told = parts, 0, {}

        def one_finished() -> None:
            self._finished += 1

        try:
            yield one_finished
        finally:
            self._parts = 0


CURRENT = StageProgress()
"""The stage that this process is at."""


def progress_reporter(key: str) -> Callable[[float, str], None]:
    """Return a function (fraction done, text) that shows progress: on a terminal's bar, Prefect's page, in the log."""
    show, say = _page_and_log(key) if _in_a_task() else (None, partial(print, flush=True))
    line = lines(key, say) if CURRENT.has_lines else None

    def report(fraction: float, text: str) -> None:
        CURRENT.report(key, fraction)
        if show is not None:
            show(100 * fraction, text)
        if line is not None:
            line(fraction, text)

    return report


def lines(key: str, say: Callable[[str], object]) -> Callable[[float, str], None]:
    """Return a function (fraction done, text) that says a line at the beginning, at the end, and now and then."""
    said = -math.inf

    def report(fraction: float, text: str) -> None:
        nonlocal said
        if fraction >= 1 or time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            say(f"{key}: {100 * fraction:5.1f} %  {text}")

    return report


def _in_a_task() -> bool:
    if not prefect_is_here():
        return False
    from prefect.context import TaskRunContext

    return TaskRunContext.get() is not None


def _page_and_log(key: str) -> tuple[Callable[[float, str], object], Callable[[str], object]]:
    """Return what shows (per cent, text) on Prefect's page and what writes a line into the task's log."""
    from prefect import get_run_logger
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    artifact = cast(UUID, create_progress_artifact(progress=0.0, key=key, description=key))
    return (
        lambda percent, text: update_progress_artifact(artifact_id=artifact, progress=percent, description=text),
        get_run_logger().info,
    )


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
