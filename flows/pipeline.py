"""The main job: synthetic images, backbone, teachers, votes, release, student, report.

The flow walks the graph of dvc.yaml. A stage that DVC calls unchanged is skipped, a stage that ran is committed to
DVC, so the flow and `dvc repro` are two doors to one result. Every stage is a subflow; its tasks run on the runner that
the parameters name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import Flow, flow, get_run_logger
from prefect.runtime import flow_run

from flows.cluster import check_cluster
from flows.logs import quiet_logs
from flows.runners import device_per_task, task_runner
from flows.stages import run_stage
from tasks.config.presets import derive, project_root, resolve, selected_run, shown_assignment
from tasks.runtime.run import refuse_transcription
from tasks.versioning import MAIN, Pipeline, commit, is_changed

FAN_OUT = frozenset({"synthesize", "average", "teach"})
"""Stages whose tasks are worth a worker pool or a cluster; for the others starting one costs more than it gives."""


@flow(name="stage", validate_parameters=False)
def _stage(root: str, run: str, stage: str) -> None:
    run_stage(Path(root), run, stage)


def run_stage_as_flow(root: Path, run: str, stage: str) -> None:
    """Run one stage as a flow of its own name, with the run's task runner where the stage fans out."""
    stage_as_flow(_stage, root, run, stage, fans_out=stage in FAN_OUT)


def stage_as_flow(body: Flow[..., None], root: Path, run: str, stage: str, *, fans_out: bool) -> None:
    """Run a stage, by a flow that takes (root, run, stage), under its own name; on the run's runner if it fans out."""
    options: dict[str, Any] = {"name": stage, "flow_run_name": run}
    if not fans_out:
        body.with_options(**options)(str(root), run, stage)
        return
    params = resolve(root, run)
    check_cluster(params.runner, root)
    runner = task_runner(params.runner, params.device)
    with device_per_task(params.runner, params.device):
        body.with_options(**options, task_runner=runner)(str(root), run, stage)


def walk(root: Path, run: str, stages: Pipeline, make: Callable[[Path, str, str], None]) -> None:
    """Make, inside a flow, every stage of a pipeline file that DVC calls changed, and commit it."""
    logger = get_run_logger()
    asked = False
    for stage in stages.stages:
        if not is_changed(root, run, stage, stages):
            logger.info("%s: unchanged", stage)
            continue
        if not asked:
            # Before hours of work, not after: a cluster that is not there, or cannot work here.
            for line in check_cluster(resolve(root, run).runner, root):
                logger.warning(line)
            asked = True
        make(root, run, stage)
        commit(root, run, stage, stages)


def _run_name() -> str:
    """Name the flow run after what was asked for, as far as anybody may read it."""
    parameters = flow_run.parameters
    overrides = map(shown_assignment, parameters.get("overrides") or [])
    return " ".join([parameters.get("preset") or "selected run", *overrides])


@flow(name="terrine", flow_run_name=_run_name)
def pipeline(preset: str | None = None, overrides: list[str] | None = None) -> str:
    """Make a run: a preset (default: the run params.yaml names) with overrides `section.key=value`.

    Returns the name of the run. A run that is complete does nothing.
    """
    quiet_logs()
    root = project_root()
    run = derive(root, preset or selected_run(root), overrides or [])
    refuse_transcription(run, resolve(root, run))
    walk(root, run, MAIN, run_stage_as_flow)
    return run
