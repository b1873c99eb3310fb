"""Progress of long work: on Prefect's page where there is a server, and in the log everywhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

from tasks.runtime.step import prefect_is_here

SECONDS_BETWEEN_LINES = 30.0
"""How often the log says how far a long work is."""


def progress_reporter(key: str) -> Callable[[float, str], None]:
    """Return a function (fraction done, text) that shows progress: on Prefect's page where a server is, and in the log.

    The log has a line at the beginning, at the end, and now and then between.
    """
    show, say = _page_and_log(key) if _in_a_task() else (None, partial(print, flush=True))
    said = -math.inf

    def report(fraction: float, text: str) -> None:
        nonlocal said
        if show is not None:
            show(100 * fraction, text)
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

    artifact = create_progress_artifact(progress=0.0, key=key, description=key)
    return (
        lambda percent, text: update_progress_artifact(artifact_id=artifact, progress=percent, description=text),
        get_run_logger().info,
    )
