"""To make a run: its stages in their order, each unless DVC calls it unchanged, by whoever carries them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from flows import server
from flows.cluster import check_cluster
from flows.stages import begin, run_stage
from flows.stopping import at_the_end, uninterrupted
from flows.terminal import SHOWN, quiet
from tasks.config.presets import resolve
from tasks.runtime import leftovers
from tasks.runtime.locks import making, when_alone
from tasks.runtime.progress import CURRENT
from tasks.runtime.sharing import take_over
from tasks.runtime.store import Folders
from tasks.runtime.versioning import changed_stages, commit, is_changed, refresh, select
from tasks.transcription.graph import pipeline_of


def is_made(root: Path, run: str) -> bool:
    """Tell whether a run is finished and DVC would run no stage of it again."""
    return Folders(root, run).finished and not changed_stages(root, run, pipeline_of(resolve(root, run)))


def clear(root: Path, run: str) -> None:
    """Clear away what killed processes left, of this run and of what runs share; nothing that a living one uses."""
    when_alone(root, lambda: leftovers.remove(leftovers.of_the_project(root)))
    server.clear_after_the_dead(root)
    with making(root, run):
        leftovers.remove(leftovers.of_a_run(Folders(root, run)))


def walk(
    root: Path,
    run: str,
    carry: Callable[[Path, str, str], None],
    logger: logging.Logger | logging.LoggerAdapter,
    *,
    selects: bool,
) -> None:
    """Make every stage of a run that DVC calls changed, by `carry`, and commit it; `selects`: later commands mean this
    run. What another run made of the same is taken from there.

    Others may make other runs of the project meanwhile. What killed processes left is cleared away first.
    """
    clear(root, run)
    with making(root, run):
        pipeline, lines, asked = begin(root, run), SHOWN.get(), False
        if selects:
            select(root, run, pipeline)
        refresh(root, run, pipeline)
        for stage in pipeline.names:
            CURRENT.begin(Folders(root, run), stage)
            if lines is not None:
                lines.begin(pipeline.names, stage)
            changed, source = is_changed(root, run, stage, pipeline), None
            if not changed:
                logger.info("%s: unchanged", stage)
            elif source := take_over(root, run, stage, pipeline):
                logger.info("%s: as in %s", stage, source)
            elif not asked:
                # Before hours of work, not after: a cluster that is not there, or cannot work here.
                for line in check_cluster(resolve(root, run).runner, root):
                    logger.warning(line)
                asked = True
            if changed:
                if not source:
                    carry(root, run, stage)
                with uninterrupted():
                    commit(root, run, stage, pipeline)
            if lines is not None:
                lines.end(made=changed, source=source)


def make(root: Path, run: str, *, with_server: bool = True) -> None:
    """Make a run from a command: what it shows is a line for each stage; see `flows.terminal.quiet`.

    A server of the user's sees the run and all its stages. Where there is none, Prefect carries what it is needed for,
    stages that fan out, by a server that starts while the first are made; without `with_server` nothing.
    """
    with quiet(root, run) as console, at_the_end(server.end):
        if with_server and server.is_the_users():
            from flows.pipeline import pipeline

            pipeline(preset=run, selects=False)
            return
        carry = _fan_out_alone(console) if with_server else run_stage
        walk(root, run, carry, logging.getLogger(__name__), selects=False)


def _fan_out_alone(console: Console) -> Callable[[Path, str, str], None]:
    """Return what carries a stage as a flow on this process's own server if it fans out, and calls it if not."""

    def carry(root: Path, run: str, stage: str) -> None:
        params = resolve(root, run)
        stages = pipeline_of(params).stages
        ahead = stages[[each.name for each in stages].index(stage) :]
        if any(each.fans_out(params) for each in ahead):
            server.start(root)
        if not ahead[0].fans_out(params):
            run_stage(root, run, stage)
            return
        server.wait(lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        from flows.pipeline import run_stage_as_flow

        run_stage_as_flow(root, run, stage)

    return carry
