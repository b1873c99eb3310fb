"""The flow: one run, stage by stage.

It walks the graph of the run's pipeline. A stage that DVC calls unchanged is skipped, a stage that ran is committed to
DVC, so the flow and `dvc repro` are two doors to one result. Every stage is a subflow; its tasks run on the runner that
the parameters name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.client.orchestration import get_client
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled

from flows.cluster import check_cluster
from flows.deploy import check_overrides
from flows.logs import shorten_users_errors
from flows.runners import device_per_task, task_runner
from flows.stages import begin, run_stage
from flows.stopping import at_the_end, uninterrupted
from flows.terminal import SHOWN, quiet
from tasks.config.presets import derive, project_root, resolve, selected_run, shown_assignment
from tasks.runtime.graph import Pipeline
from tasks.runtime.progress import CURRENT
from tasks.runtime.store import Folders
from tasks.runtime.versioning import commit, is_changed, refresh
from tasks.transcription.graph import pipeline_of

LONGEST = 1.0
"""Seconds that a server has to hear that a flow run was stopped."""


@contextmanager
def cancelled_when_stopped() -> Iterator[None]:
    """Tell a server of one's own, when Ctrl-C ends this process, that the flow run is over: it would be Running there
    for ever. A server that was started for this run alone ends with it."""
    identity = UUID(flow_run.id)

    def tell() -> None:
        # Nobody is left to hear of a server that does not answer.
        with suppress(Exception), get_client({"timeout": LONGEST}, sync_client=True) as client:
            client.set_flow_run_state(identity, Cancelled(message="stopped by Ctrl-C"), force=True)

    def tell_in_time() -> None:
        thread = Thread(target=tell, daemon=True)
        thread.start()
        thread.join(LONGEST)

    if not PREFECT_API_URL.value():
        yield
        return
    with at_the_end(tell_in_time):
        yield


@flow(name="stage", validate_parameters=False)
def _stage(root: str, run: str, stage: str) -> None:
    with cancelled_when_stopped():
        run_stage(Path(root), run, stage)


def run_stage_as_flow(root: Path, run: str, stage: str) -> None:
    """Run one stage as a flow of its own name, with the run's task runner where the stage fans out."""
    options: dict[str, Any] = {"name": stage, "flow_run_name": run}
    params = resolve(root, run)
    if not pipeline_of(params)[stage].fans_out(params):
        _stage.with_options(**options)(str(root), run, stage)
        return
    check_cluster(params.runner, root)
    runner = task_runner(params.runner, params.device)
    with device_per_task(params.runner, params.device):
        _stage.with_options(**options, task_runner=runner)(str(root), run, stage)


def walk(root: Path, run: str, pipeline: Pipeline) -> None:
    """Make, inside a flow, every stage of a run that DVC calls changed, and commit it."""
    logger, lines = get_run_logger(), SHOWN.get()
    asked = False
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
            run_stage_as_flow(root, run, stage)
            with uninterrupted():
                commit(root, run, stage, pipeline)
        if lines is not None:
            lines.end(made=changed)


def _run_name() -> str:
    """Name the flow run after what was asked for, as far as anybody may read it."""
    parameters = flow_run.parameters
    overrides = map(shown_assignment, parameters.get("overrides") or [])
    return " ".join([parameters.get("preset") or "selected run", *overrides])


@flow(name="terrine", flow_run_name=_run_name)
def pipeline(preset: str | None = None, overrides: list[str] | None = None) -> str:
    """Make a run: a preset (default: the run that was selected last) with overrides `section.key=value`.

    Returns the name of the run. A run that is complete does nothing. Raises SettingError where a deployment overrides
    what it may not (`flows.deploy`).
    """
    shorten_users_errors()
    root = project_root()
    if deployment.id is not None:
        check_overrides(root, overrides or [])
    run = derive(root, preset or selected_run(root), overrides or [])
    with cancelled_when_stopped():
        walk(root, run, begin(root, run))
    return run


def make(root: Path, run: str) -> None:
    """Make a run from a command: what it shows is a line for each stage; see `flows.terminal.quiet`."""
    with quiet(root, run):
        pipeline(preset=run)
