"""`terrine transcribe`: from a model that was trained on private data to a private student, by way of a generator.

A flow of its own beside the pipeline, with its own stages (transcribe/dvc.yaml) on the same privacy core and ledger. As
there, a stage that DVC calls unchanged is skipped, and a stage that ran is committed to DVC.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from flows.execution import Executor
    from tasks.run import Run

FAN_OUT = frozenset({"teach", "transcribe"})
"""Stages whose tasks may be carried by workers, where transcription.per_task says how many clients one task has."""


def register(app: typer.Typer) -> None:
    """Add `transcribe`, and the stages that transcribe/dvc.yaml calls, to the command line."""
    app.command()(transcribe)
    app.command("transcription", hidden=True)(stage_command)


def transcribe(
    preset: Annotated[
        str | None,
        typer.Option("--preset", help="A preset named dpsd-… or feddpsd-…; default: the last transcription."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override a parameter: section.key=value. May be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=N.")] = None,
) -> None:
    """Transcribe a model into a private student; a run that is complete does nothing."""
    from rich.console import Console

    from tasks.presets import project_root
    from tasks.run import open_run
    from tasks.transcribe_report import summary_table
    from tasks.versioning import TRANSCRIPTION, changed_stages

    console = Console()
    root = project_root()
    name = chosen_run(root, preset, list(set_ or []) + ([f"seed={seed}"] if seed is not None else []))
    changed = changed_stages(root, name, TRANSCRIPTION)
    if changed:
        console.print(f"Run [bold]{name}[/bold]: {', '.join(changed)}")
        transcription(preset=name)
    else:
        console.print(f"Run [bold]{name}[/bold] is up to date: nothing to do.")
    console.print(summary_table(open_run(root, name)))


def chosen_run(root: Path, preset: str | None, assignments: list[str]) -> str:
    """Return the name of the run that is asked for, once it is known to be a transcription that can meet its budget.

    Raises SettingError where none is named or it is none, BudgetError with the noise that would meet the budget.
    """
    from tasks.presets import derive, resolve, selected_transcription
    from tasks.run import Run
    from tasks.transcribe_release import check_run
    from terrine.errors import SettingError

    wanted = preset or selected_transcription(root)
    if wanted is None:
        raise SettingError(
            "No transcription was made yet: name one with --preset. `terrine presets` lists those named dpsd-…."
        )
    name = derive(root, wanted, assignments)
    check_run(Run(root, name, resolve(root, name)))
    return name


def transcription(preset: str) -> str:
    """Make a transcription as a Prefect flow, and return its name."""
    from prefect import flow

    return flow(name="transcription", flow_run_name="{preset}")(_walk)(preset)


def _walk(preset: str) -> str:
    from prefect import get_run_logger

    from flows.cluster import check_cluster
    from flows.logs import quiet_logs
    from tasks.presets import project_root, resolve
    from tasks.versioning import TRANSCRIPTION, commit, is_changed

    quiet_logs()
    root, logger = project_root(), get_run_logger()
    asked = False
    for stage in TRANSCRIPTION.stages:
        if not is_changed(root, preset, stage, TRANSCRIPTION):
            logger.info("%s: unchanged", stage)
            continue
        if not asked:
            for line in check_cluster(resolve(root, preset).runner, root):
                logger.warning(line)
            asked = True
        run_stage_as_flow(root, preset, stage)
        commit(root, preset, stage, TRANSCRIPTION)
    return preset


def _stage(root: str, run: str, stage: str) -> None:
    run_stage(Path(root), run, stage)


def run_stage_as_flow(root: Path, run: str, stage: str) -> None:
    """Run one stage as a flow of its own name, with the run's task runner where clients are spread over tasks."""
    from prefect import flow

    from flows.cluster import check_cluster
    from flows.runners import device_per_task, task_runner
    from tasks.presets import resolve
    from tasks.transcribe_start import section

    params = resolve(root, run)
    options: dict[str, Any] = {"name": stage, "flow_run_name": run, "validate_parameters": False}
    if stage not in FAN_OUT or section(params).per_task is None:
        flow(**options)(_stage)(str(root), run, stage)
        return
    check_cluster(params.runner, root)
    with device_per_task(params.runner, params.device):
        flow(**options, task_runner=task_runner(params.runner, params.device))(_stage)(str(root), run, stage)


def stage_command(
    name: str, run: Annotated[str | None, typer.Option(help="The run; default: the last transcription.")] = None
) -> None:
    """Run one stage of a transcription: what transcribe/dvc.yaml calls."""
    from tasks.presets import project_root, selected_transcription
    from terrine.errors import SettingError, TerrineError

    root = project_root()
    chosen = run or selected_transcription(root)
    if chosen is None:
        raise SettingError("No transcription was made yet: name one with --run.")
    if name != "parameters" and name not in STAGES:
        raise TerrineError(f"A transcription has no stage '{name}'. Known stages: parameters, {', '.join(STAGES)}.")
    if name != "parameters" and os.environ.get("PREFECT_API_URL"):
        run_stage_as_flow(root, chosen, name)
    else:
        run_stage(root, chosen, name)


def run_stage(root: Path, name: str, stage: str) -> None:
    """Run one stage of a transcription, wherever we are: inside a flow or as a DVC command."""
    from flows.execution import executor
    from tasks import timing
    from tasks.run import open_run, write_parameters
    from tasks.transcribe_start import section

    if stage == "parameters":
        section(write_parameters(root, name).params)
        return
    run = open_run(root, name)
    with timing.measured(run, stage):
        STAGES[stage](run, executor())


def run_through(run: Run, first: str, last: str) -> None:
    """Run the stages from `first` to `last` in this process, without DVC and without a server: for runs apart."""
    from flows.execution import InProcess

    names = list(STAGES)
    for stage in names[names.index(first) : names.index(last) + 1]:
        STAGES[stage](run, InProcess())


def _dataset(run: Run, execute: Executor) -> None:
    from tasks import dataset

    execute.run(dataset.prepare_dataset, run)


def _partition(run: Run, execute: Executor) -> None:
    from tasks import transcribe_teach

    execute.run(transcribe_teach.deal_clients, run)


def _labels(run: Run, execute: Executor) -> None:
    from tasks import transcribe_teach

    execute.run(transcribe_teach.respond, run)


def _start(run: Run, execute: Executor) -> None:
    from tasks import transcribe_start

    execute.run(transcribe_start.prepare_start, run)


def _teach(run: Run, execute: Executor) -> None:
    from tasks import transcribe_clients, transcribe_teach

    groups = transcribe_clients.groups(run)
    calls = [(execute.place(run, part), group) for part, group in enumerate(groups)]
    execute.map(transcribe_teach.train_clients, calls, _names(groups))
    execute.run(transcribe_teach.collect_clients, run)


def _transcribe(run: Run, execute: Executor) -> None:
    from tasks import transcribe as tasks

    session = tasks.Session(run)
    try:
        execute.run(tasks.begin, session)
        if session.fans_out:
            while session.unfinished:
                if session.waiting:
                    _ask_the_clients(session, execute)
                execute.run(tasks.learn, session)
        else:
            execute.run(tasks.transcribe_here, session)
        execute.run(tasks.finish, session)
    finally:
        session.abandon()


def _ask_the_clients(session: Any, execute: Executor) -> None:
    from tasks import transcribe as tasks

    execute.run(tasks.pose, session)
    number = session.loop.iteration
    calls = [
        (execute.place(session.run, part), session.folder, number, group) for part, group in enumerate(session.groups)
    ]
    execute.map(tasks.ask, calls, [f"{number + 1}, {name}" for name in _names(session.groups)])


def _names(groups: list[range]) -> list[str]:
    return [f"{group.start}-{group.stop - 1}" for group in groups]


def _evaluate(run: Run, execute: Executor) -> None:
    from tasks import evaluate

    execute.run(evaluate.evaluate_student, run)


def _report(run: Run, execute: Executor) -> None:
    from tasks import transcribe_report

    execute.run(transcribe_report.write_report, run)
    execute.run(transcribe_report.log_run, run)


STAGES: dict[str, Callable[[Run, Executor], None]] = {
    "dataset": _dataset,
    "partition": _partition,
    "labels": _labels,
    "start": _start,
    "teach": _teach,
    "transcribe": _transcribe,
    "evaluate": _evaluate,
    "report": _report,
}
