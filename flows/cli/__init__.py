"""The command line: `terrine`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flows.cli import (
    accounting,
    audit,
    compare,
    export,
    images,
    ledger,
    membership,
    params,
    party,
    predict,
    reproduce,
    serve,
    sweep,
    ui,
)
from flows.environment import prepare_environment
from terrine.errors import TerrineError

app = typer.Typer(
    name="terrine",
    help="Train a model on private images and publish it with a differential-privacy guarantee.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

PresetOption = Annotated[
    str | None, typer.Option("--preset", help="A preset of `terrine presets`; default: the run that was selected last.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a parameter: section.key=value. May be repeated.")
]


@app.command()
def run(
    preset: PresetOption = None,
    set_: SetOption = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=N.")] = None,
) -> None:
    """Make a run and print what came out; a run that is complete does nothing."""
    from flows.stages import begin
    from tasks.config.presets import derive, project_root, selected_run
    from tasks.reports.summary import costs
    from tasks.runtime.graph import load
    from tasks.runtime.run import open_run
    from tasks.runtime.versioning import changed_stages

    root = project_root()
    assignments = list(set_ or []) + ([f"seed={seed}"] if seed is not None else [])
    name = derive(root, preset or selected_run(root), assignments)
    graph = begin(root, name)
    changed = changed_stages(root, name, graph)
    if changed:
        console.print(f"Run [bold]{name}[/bold]: {', '.join(changed)}")
        from flows.pipeline import pipeline

        pipeline(preset=name)
    else:
        console.print(f"Run [bold]{name}[/bold] is up to date: nothing to do.")
    made = open_run(root, name)
    for table in (load(graph.result)(made), costs(made, graph.names)):
        console.print(table)


@app.command()
def presets() -> None:
    """List the presets, one line each."""
    from tasks.config.presets import presets as known
    from tasks.config.presets import project_root

    table = Table("preset", "what it is", box=None, pad_edge=False)
    for preset in known(project_root()):
        table.add_row(preset.name, preset.description)
    console.print(table)


@app.command(hidden=True)
def stage(
    name: str, run: Annotated[str | None, typer.Option(help="The run; default: the one selected last.")] = None
) -> None:
    """Run one stage: what dvc.yaml calls. With PREFECT_API_URL set it is a flow on that server."""
    from tasks.config.presets import project_root, selected_run

    root = project_root()
    chosen = run or selected_run(root)
    if os.environ.get("PREFECT_API_URL") and name != "parameters":
        from flows.pipeline import run_stage_as_flow

        run_stage_as_flow(root, chosen, name)
    else:
        from flows.stages import run_stage

        run_stage(root, chosen, name)


@app.command("deploy-local")
def deploy_local_command(
    deployment: Annotated[str, typer.Option(help="A deployment of prefect.yaml.")] = "default",
    port: Annotated[int | None, typer.Option(help="Port of the server; default 4200, or a free one.")] = None,
    keep: Annotated[bool, typer.Option(help="Leave server and worker running until Ctrl-C.")] = False,
) -> None:
    """Start a Prefect server and worker on this machine, deploy the pipeline and run it."""
    from flows.deploy import deploy_local
    from tasks.config.presets import project_root

    deploy_local(project_root(), deployment, port=port, keep=keep)


@app.command()
def datasets() -> None:
    """List the datasets that data.name knows."""
    from terrine.data.source import SOURCES

    console.print(", ".join(SOURCES.names()))


PARTS = (accounting, audit, compare, export, images, ledger, membership, params, party, predict, reproduce, serve)
PARTS += (sweep, ui)
for part in PARTS:
    part.register(app)


def main() -> None:
    """Run the command line; a user's error is one red sentence, a defect keeps its traceback."""
    prepare_environment()
    try:
        app()
    except TerrineError as error:
        Console(stderr=True).print(f"[red]Error:[/red] {error}", highlight=False, markup=True)
        sys.exit(1)
