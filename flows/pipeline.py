"""Prefect flows: a whole run, stage by stage, or one stage for DVC or for another machine.

Each stage of a run is a task run, with the stage's own tasks as nested task runs. A stage that DVC reports as unchanged
is skipped, and one that ran is committed to DVC, so the flow and `dvc repro` give the same result.
"""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from pathlib import Path
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelling, Completed

from flows import server
from flows.approval_form import decide_by_form
from flows.printing import shorten_users_errors
from flows.runners import cuda_devices
from flows.site_policy import check_overrides
from flows.stages import run_stage, run_stages
from flows.terminal import quiet
from tasks.config.presets import derive, project_root, redact_override, resolve, selected_run
from tasks.reports.summary import for_anybody
from tasks.runtime.decisions import ApprovalNeeded
from tasks.runtime.run import Run, open_run
from tasks.runtime.stage_graph import PARAMETERS
from tasks.transcription.graph import pipeline_of
from terrine.errors import SettingError, TerrineError

GPU = "terrine-gpu"
"""Global concurrency limit that stages occupy on a machine with CUDA devices, if the server defines it."""
TRIES = 3
"""Largest number of times that a crashing remote stage is started."""
WAITING = "Awaiting approval"
"""Name of the Prefect state of a stage whose release needs an approval."""
PAUSE = 5.0
"""Seconds between two requests for the state of a remote stage."""


def _run_name() -> str:
    """Return a name for the flow run without site-local settings."""
    parameters = flow_run.parameters
    overrides = map(redact_override, parameters.get("overrides") or [])
    return " ".join([parameters.get("preset") or "selected run", *overrides])


@flow(name="terrine", flow_run_name=_run_name)
def pipeline(preset: str | None = None, overrides: list[str] | None = None, selects: bool = True) -> str:
    """Execute the stages of a run that are not up to date.

    Args:
        preset: A preset or a run. Default: the run that was selected last.
        overrides: Settings, `section.key=value`.
        selects: Whether later commands refer to this run.

    Returns:
        The name of the run.

    Raises:
        SettingError: If a deployment overrides a setting that it may not (`flows.site_policy`).
    """
    shorten_users_errors()
    root = project_root()
    if deployment.id is not None:
        check_overrides(root, overrides or [])
    run = derive(root, preset or selected_run(root), overrides or [])
    run_stages(root, run, _run_stage, get_run_logger(), selects=selects)
    figures = for_anybody(open_run(root, run))
    rows = [{"figure": name, "value": value} for name, value in figures.items()]
    create_table_artifact(rows, key=f"run-{run}", description="Released figures and files")
    get_run_logger().info("Run %s: %s", run, "; ".join(f"{name}: {value}" for name, value in figures.items()))
    return run


def make_run(root: Path, run: str, *, with_server: bool = True) -> None:
    """Execute the stages of a run and print a line for each; see `flows.terminal.quiet`.

    Args:
        root: The project.
        run: The name of the run.
        with_server: Whether the stages are tasks of a Prefect flow. Otherwise they are called in sequence.
    """
    with quiet(root, run):
        if not with_server:
            run_stages(root, run, run_stage, logging.getLogger(__name__), selects=False)
            return
        with server.prefect_server():
            pipeline(preset=run, selects=False)


@flow(name="stage", flow_run_name="{run} {stage}", validate_parameters=False)
def stage_flow(run: str, stage: str) -> State | None:
    """Run one stage, for `dvc repro`, or as a deployment on another machine for the flow that executes the run.

    Raises:
        SettingError: If a deployment is started without such a flow, which holds the run's locks.
    """
    shorten_users_errors()
    if deployment.id is not None and flow_run.parent_flow_run_id is None:
        raise SettingError("This flow must be started by a parent run. Set runner.elsewhere in that run instead.")
    waiting = _run_here(project_root(), run, stage)
    if waiting and deployment.id is None:
        raise ApprovalNeeded(waiting)
    return Completed(name=WAITING, message=waiting) if waiting else None


def _run_stage(root: Path, run: str, stage: str) -> None:
    """Run one stage as a task run of the current flow, or by the deployment that `runner.elsewhere` names for it.

    If the stage's release needs an approval, a flow started by a deployment is suspended until the form is submitted.

    Raises:
        ApprovalNeeded: If there is no decision yet and this flow has no form.
    """
    remote = resolve(root, run).runner.elsewhere.get(stage)
    here = remote is None or server.is_temporary()
    while waiting := _run_here(root, run, stage) if here else run_remotely(str(remote), run, stage):
        if deployment.id is None or flow_run.parent_flow_run_id is not None:
            raise ApprovalNeeded(waiting)
        decide_by_form(Run(root, run, resolve(root, run)), waiting)


@task(name="stage", task_run_name="{stage}", cache_policy=NO_CACHE, persist_result=False)
def _stage_task(root: Path, run: str, stage: str) -> State | None:
    """Run a stage. If it waits for an approval, return a state with that name, because waiting is not a failure."""
    try:
        run_stage(root, run, stage)
    except ApprovalNeeded as needed:
        return Completed(name=WAITING, message=str(needed))
    return None


def _run_here(root: Path, run: str, stage: str) -> str | None:
    params = resolve(root, run)
    names = pipeline_of(params).names
    place = f"{names.index(stage) + 1}/{len(names)} {stage}"
    takes_gpu = stage != PARAMETERS.name and bool(cuda_devices(params.device))
    with concurrency(GPU) if takes_gpu else nullcontext():
        state = _stage_task.with_options(task_run_name=place)(root, run, stage, return_state=True)
    if state.name == WAITING:
        return str(state.message)
    state.result()
    return None


def run_remotely(remote: str, run: str, stage: str) -> str | None:
    """Start a stage's deployment and wait for it. If it crashes, start it again; the stage then resumes.

    Returns:
        A message if the stage waits for an approval, else None.

    Raises:
        SettingError: If the server has no deployment of this name.
        TerrineError: If the stage failed there, or crashed `TRIES` times.
    """
    for remaining in reversed(range(TRIES)):
        try:
            started = run_deployment(remote, parameters={"run": run, "stage": stage}, timeout=0)
        except ObjectNotFound:
            raise SettingError(
                f"runner.elsewhere: the server has no deployment {remote} for the stage {stage}. "
                "`prefect deploy --all` registers the deployments of prefect.yaml."
            ) from None
        state = _wait_for(started.id)
        if state.is_completed():
            return state.message if state.name == WAITING else None
        if not (state.is_crashed() and remaining):
            raise TerrineError(f"Stage {stage} of the deployment {remote} ended as {state.name}: {state.message}")
        get_run_logger().warning("Stage %s crashed at the deployment %s and is started again", stage, remote)


def _wait_for(flow_run_id: UUID) -> State:
    """Return the final state of a flow run. The remote flow run is cancelled if this process stops waiting."""
    with get_client(sync_client=True) as client:
        try:
            while (state := client.read_flow_run(flow_run_id).state) is None or not state.is_final():
                time.sleep(PAUSE)
            return state
        except BaseException:
            client.set_flow_run_state(flow_run_id, Cancelling(message="The run that waits was stopped."), force=True)
            raise
