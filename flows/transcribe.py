"""`terrine transcribe`: from a model that was trained on private data to a private student, by way of a generator.

A flow of its own beside the pipeline, with its own stages (transcribe/dvc.yaml) on the same privacy core and ledger. As
there, a stage that DVC calls unchanged is skipped, and a stage that ran is committed to DVC.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

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

    from tasks.config.presets import project_root, resolve
    from tasks.runtime.run import Run, open_run
    from tasks.transcription.report import summary_table
    from tasks.transcription.teach import forget_replaced_teacher
    from tasks.versioning import TRANSCRIPTION, changed_stages

    console = Console()
    root = project_root()
    name = chosen_run(root, preset, list(set_ or []) + ([f"seed={seed}"] if seed is not None else []))
    forget_replaced_teacher(Run(root, name, resolve(root, name)))
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
    from tasks.config.presets import derive, resolve, selected_transcription
    from tasks.runtime.run import Run
    from tasks.transcription.release import check_run
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
    from flows.logs import quiet_logs
    from flows.pipeline import walk
    from tasks.config.presets import project_root
    from tasks.versioning import TRANSCRIPTION

    quiet_logs()
    walk(project_root(), preset, TRANSCRIPTION, run_stage_as_flow)
    return preset


def _stage(root: str, run: str, stage: str) -> None:
    run_stage(Path(root), run, stage)


def run_stage_as_flow(root: Path, run: str, stage: str) -> None:
    """Run one stage as a flow of its own name, with the run's task runner where clients are spread over tasks."""
    from prefect import flow

    from flows.pipeline import stage_as_flow
    from tasks.config.presets import resolve
    from tasks.transcription.start import section

    fans_out = stage in FAN_OUT and section(resolve(root, run)).per_task is not None
    stage_as_flow(flow(name="stage", validate_parameters=False)(_stage), root, run, stage, fans_out=fans_out)


def stage_command(
    name: str, run: Annotated[str | None, typer.Option(help="The run; default: the last transcription.")] = None
) -> None:
    """Run one stage of a transcription: what transcribe/dvc.yaml calls."""
    from flows.transcription_stages import STAGES
    from tasks.config.presets import project_root, selected_transcription
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
    """Run one stage of a transcription: see `flows.stages.run_stage`."""
    from flows import stages
    from flows.transcription_stages import STAGES
    from tasks.runtime.run import open_run
    from tasks.transcription.start import section

    stages.run_stage(root, name, stage, STAGES)
    if stage == "parameters":
        section(open_run(root, name).params)  # refuses a run that is no transcription
