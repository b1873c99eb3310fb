"""To make a run: its stages in their order, each unless DVC calls it unchanged, by whoever carries them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from flows import server
from flows.cluster import check_cluster
from flows.stages import begin, run_stage
from flows.stopping import at_the_end, uninterrupted
from flows.terminal import SHOWN, quiet
from tasks.config.presets import resolve
from tasks.runtime import leftovers
from tasks.runtime.locks import making, when_alone
from tasks.runtime.progress import CURRENT
from tasks.runtime.store import Folders
from tasks.runtime.versioning import commit, is_changed, refresh, select


def walk(
    root: Path,
    run: str,
    carry: Callable[[Path, str, str], None],
    logger: logging.Logger | logging.LoggerAdapter,
    *,
    selects: bool,
) -> None:
    """Make every stage of a run that DVC calls changed, by `carry`, and commit it.

    Others may make other runs of the project meanwhile. What killed processes left is cleared away first.

    selects: whether later commands mean this run.
    """
    when_alone(root, lambda: leftovers.remove(leftovers.of_the_project(root)))
    with making(root, run):
        leftovers.remove(leftovers.of_a_run(Folders(root, run)))
        pipeline, lines, asked = begin(root, run), SHOWN.get(), False
        if selects:
            select(root, run, pipeline)
        refresh(root, run, pipeline)
        for stage in pipeline.names:
            CURRENT.begin(Folders(root, run), stage)
            if lines is not None:
                lines.begin(pipeline.names, stage)
            if not (changed := is_changed(root, run, stage, pipeline)):
                logger.info("%s: unchanged", stage)
            elif not asked:
                # Before hours of work, not after: a cluster that is not there, or cannot work here.
                for line in check_cluster(resolve(root, run).runner, root):
                    logger.warning(line)
                asked = True
            if changed:
                carry(root, run, stage)
                with uninterrupted():
                    commit(root, run, stage, pipeline)
            if lines is not None:
                lines.end(made=changed)


def make(root: Path, run: str, *, with_server: bool = True) -> None:
    """Make a run from a command: what it shows is a line for each stage; see `flows.terminal.quiet`.

    with_server: whether Prefect carries the tasks. Without it they are called one after the other, in this process.
    """
    with quiet(root, run) as console, at_the_end(server.end):
        if not with_server:
            walk(root, run, run_stage, logging.getLogger(__name__), selects=False)
            return
        own = server.start(root)  # it starts while we import
        from flows.pipeline import pipeline, without_heartbeat

        if own is not None:
            own.wait(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        with without_heartbeat() if server.is_own() else nullcontext():
            pipeline(preset=run, selects=False)
