"""Progress of long work: on Prefect's page where there is a server, and in the log everywhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import TaskRunContext

SECONDS_BETWEEN_LINES = 30.0
"""How often the log says how far a long work is."""


def progress_reporter(key: str) -> Callable[[float, str], None]:
    """Return a function (fraction done, text) that shows progress: on Prefect's page where a server is, and in the log.

    The log has a line at the beginning, at the end, and now and then between.
    """
    artifact = None
    say: Callable[[str], object] = partial(print, flush=True)
    if TaskRunContext.get() is not None:
        artifact = create_progress_artifact(progress=0.0, key=key, description=key)
        say = get_run_logger().info
    said = -math.inf

    def report(fraction: float, text: str) -> None:
        nonlocal said
        if artifact is not None:
            update_progress_artifact(artifact_id=artifact, progress=100 * fraction, description=text)
        if fraction >= 1 or time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            say(f"{key}: {100 * fraction:5.1f} %  {text}")

    return report
