"""The flow: one run, stage by stage.

It walks the graph of the run's pipeline. A stage that DVC calls unchanged is skipped, a stage that ran is committed to
DVC, so the flow and `dvc repro` are two doors to one result. Every stage is a subflow; its tasks run on the runner that
the parameters name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Literal
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    TaskRunFilter,
    TaskRunFilterFlowRunId,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Cancelled, Crashed

from flows import server
from flows.cluster import check_cluster
from flows.deploy import check_overrides
from flows.elsewhere import make_elsewhere
from flows.logs import shorten_users_errors
from flows.making import walk
from flows.runners import device_per_task, task_runner
from flows.stages import run_stage
from flows.stopping import at_the_end, stoppable
from tasks.config.presets import derive, project_root, resolve, selected_run, shown_assignment
from tasks.reports.summary import for_anybody
from tasks.runtime.run import open_run
from tasks.transcription.graph import pipeline_of
from terrine.errors import SettingError

without_heartbeat = partial(temporary_settings, {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
"""For flows whose caller says that they are alive, or whose server dies with them: at its end, a flow waits for up to a
second until the thread that says so has heard of it."""
CANCELLED = Cancelled(message="stopped")


@contextmanager
def told_when_stopped(over: State, within: float = 1.0) -> Iterator[None]:
    """Tell a server of one's own, when Ctrl-C or SIGTERM ends this process, in which state the flow run and its tasks
    are: they would be Running there for ever. A server that was started for this run alone ends with it.

    within: seconds that the server has to hear of it.
    """
    identity = UUID(flow_run.id)
    unfinished = TaskRunFilter(
        flow_run_id=TaskRunFilterFlowRunId(any_=[identity]),
        state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING])),
    )

    def tell() -> None:
        # Nobody is left to hear of a server that does not answer.
        with suppress(Exception), get_client({"timeout": within}, sync_client=True) as client:
            # Who is asked to end by the server, by way of the worker, was cancelled.
            asked = client.read_flow_run(identity).state
            ended = CANCELLED if asked is not None and asked.is_cancelling() else over
            client.set_flow_run_state(identity, ended, force=True)
            for task_run in client.read_task_runs(task_run_filter=unfinished):
                client.set_task_run_state(task_run.id, ended, force=True)

    def tell_in_time() -> None:
        thread = Thread(target=tell, daemon=True)
        thread.start()
        thread.join(within)

    if server.is_own() or not PREFECT_API_URL.value():
        yield
        return
    with at_the_end(tell_in_time):
        yield


@flow(name="stage", validate_parameters=False)
def _stage(root: str, run: str, stage: str) -> None:
    with told_when_stopped(CANCELLED):
        run_stage(Path(root), run, stage)


def run_stage_as_flow(root: Path, run: str, stage: str) -> None:
    """Run one stage as a flow of its own name, here or by the deployment that `runner.elsewhere` names for it."""
    params = resolve(root, run)
    names = pipeline_of(params).names
    # Where DVC asks for a stage, no flow above it says of which run.
    place = f"{'' if FlowRunContext.get() else f'{run} '}{names.index(stage) + 1}/{len(names)} {stage}"
    other = params.runner.elsewhere.get(stage)
    if other is None or server.is_own():
        _make_here(root, run, stage, place)
        return
    make_elsewhere(other, run, stage, f"{run} {place}")


@flow(name="stage", validate_parameters=False)
def stage_for_another(run: str, stage: str) -> None:
    """Make a stage of a run for the flow that makes the run, and holds its locks, on another machine.

    Raises SettingError where no flow waits for it.
    """
    shorten_users_errors()
    if flow_run.parent_flow_run_id is None:
        raise SettingError("A stage is made for a run that waits for it: set runner.elsewhere there, and start that.")
    # A cluster ends a job within half a minute, and Prefect would first wait for the group of teachers at hand.
    with stoppable(), told_when_stopped(Crashed(message="its machine told it to end"), within=5):
        _make_here(project_root(), run, stage, stage)


def _make_here(root: Path, run: str, stage: str, place: str) -> None:
    """Run one stage as a flow, with the run's task runner where the stage fans out."""
    params = resolve(root, run)
    options: dict[str, Any] = {"name": stage, "flow_run_name": place}
    if not pipeline_of(params)[stage].fans_out(params):
        with without_heartbeat():
            _stage.with_options(**options)(str(root), run, stage)
        return
    check_cluster(params.runner, root)
    runner = task_runner(params.runner, params.device)
    with device_per_task(params.runner, params.device), without_heartbeat():
        _stage.with_options(**options, task_runner=runner)(str(root), run, stage)


def _run_name() -> str:
    """Name the flow run after what was asked for, as far as anybody may read it."""
    parameters = flow_run.parameters
    overrides = map(shown_assignment, parameters.get("overrides") or [])
    return " ".join([parameters.get("preset") or "selected run", *overrides])


@flow(name="terrine", flow_run_name=_run_name)
def pipeline(preset: str | None = None, overrides: list[str] | None = None, selects: bool = True) -> str:
    """Make a run: a preset (default: the run that was selected last) with overrides `section.key=value`.

    Returns the name of the run. A run that is complete does nothing. `selects`: later commands mean this run. Raises
    SettingError where a deployment overrides what it may not (`flows.deploy`).
    """
    shorten_users_errors()
    root = project_root()
    if deployment.id is not None:
        check_overrides(root, overrides or [])
    run = derive(root, preset or selected_run(root), overrides or [])
    with told_when_stopped(CANCELLED):
        walk(root, run, run_stage_as_flow, get_run_logger(), selects=selects)
    create_markdown_artifact(
        for_anybody(open_run(root, run)), key=f"run-{run}", description="What was released, and where it lies"
    )
    return run


@flow(name="sweep")
def sweep(
    vary: list[str],
    preset: str | None = None,
    overrides: list[str] | None = None,
    select: Literal["none", "evaluation", "released"] = "none",
) -> None:
    """Make a run of every combination of values, as `terrine sweep` does: see `flows.cli.sweep`, and errors there."""
    from flows.cli.sweep import sweep as search  # the command line, which imports flows

    shorten_users_errors()
    if deployment.id is not None:
        check_overrides(project_root(), [*vary, *(overrides or [])])
    search(vary, preset, overrides, select)
