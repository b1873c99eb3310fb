"""Make a run from a command, with a line for each stage."""

from __future__ import annotations

import logging
from pathlib import Path

from flows.server import prefect_server
from flows.stages import run_stage, run_stages
from flows.terminal import quiet


def make(root: Path, run: str, *, with_server: bool = True) -> None:
    """Make a run as a Prefect flow; see `flows.terminal.quiet` for its output.

    Args:
        root: The project.
        run: The name of the run.
        with_server: False calls the functions directly, one after the other, without Prefect.
    """
    with quiet(root, run):
        if not with_server:
            run_stages(root, run, run_stage, logging.getLogger(__name__), selects=False)
            return
        with prefect_server():
            from flows.pipeline import pipeline

            pipeline(preset=run, selects=False)
