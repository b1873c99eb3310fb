"""The command line: `terrine`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from flows.cli import (
    accounting,
    advise,
    audit,
    check,
    compare,
    doctor,
    export,
    images,
    init,
    ledger,
    membership,
    params,
    party,
    predict,
    promote,
    serve,
    statement,
    sweep,
    track,
    ui,
)
from flows.environment import prepare_environment
from flows.logs import LoggedError
from flows.printing import printer
from flows.stopping import stoppable
from terrine.errors import SettingError, TerrineError

app = typer.Typer(
    name="terrine",
    help="Train a model on private images and publish it with a differential-privacy guarantee.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = printer()

PresetOption = Annotated[
    str | None, typer.Option("--preset", help="A preset of `terrine presets`; default: the run that was selected last.")
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="A name of your own for the run, for ever: begins it with --preset, goes on with it without. Names are "
        "public: the statement, the student and MLflow show them.",
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a parameter: section.key=value. May be repeated.")
]


@app.command()
@stoppable()
def run(
    preset: PresetOption = None,
    name: NameOption = None,
    set_: SetOption = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=N.")] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Short for --set privacy.anyway=true: go on where votes drown in noise.")
    ] = False,
    no_server: Annotated[
        bool, typer.Option("--no-server", help="Without Prefect: tasks one after the other, in this process.")
    ] = False,
) -> None:
    """Make a run and print what came out; a run that is complete does nothing.

    If the data have changed since the run read them, it says so and exits with 1.
    """
    from flows.making import clear, make
    from flows.stages import begin
    from tasks.config.presets import derive, project_root, selected_run
    from tasks.pipeline.dataset import tell_changed_records
    from tasks.reports.summary import costs
    from tasks.runtime.graph import load
    from tasks.runtime.naming import name_run
    from tasks.runtime.run import open_run
    from tasks.runtime.versioning import changed_stages, select

    root = project_root()
    assignments = list(set_ or []) + ([f"seed={seed}"] if seed is not None else [])
    assignments += ["privacy.anyway=true"] if anyway else []
    if name is not None:
        name = name_run(root, name, preset, assignments)
    else:
        name = derive(root, preset or selected_run(root), assignments)
    check.refuse(root, name, console)
    graph = begin(root, name)
    select(root, name, graph)
    changed = changed_stages(root, name, graph)
    if changed:
        console.print(Text.assemble("Run ", (name, "bold")), soft_wrap=True)
        make(root, name, with_server=not no_server)
    else:
        clear(root, name)
    made = open_run(root, name)
    other_data = tell_changed_records(made)
    if not changed:
        done = " is finished, about data that have changed since." if other_data else " is up to date: nothing to do."
        console.print(Text.assemble("Run ", (name, "bold"), done), soft_wrap=True)
    console.print(load(graph.result)(made), soft_wrap=True)
    if not changed:
        console.print(costs(made, graph.names))
    if other_data:
        raise typer.Exit(1)


@app.command()
def presets() -> None:
    """List what can be run: presets by what they are for, one line each, and the runs that there are."""
    from tasks.config.presets import presets_by_group, project_root
    from tasks.runtime.naming import states

    root = project_root()
    groups = {title: [(preset.name, preset.description) for preset in found] for title, found in presets_by_group(root)}
    for title, rows in (groups | {"Your runs": states(root)}).items():
        table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False, title=title, title_justify="left")
        table.add_column(no_wrap=True, overflow="fold")
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        if rows:
            console.print(table, "")


@app.command(hidden=True)
@stoppable()
def stage(
    name: str, run: Annotated[str | None, typer.Option(help="The run; default: the one selected last.")] = None
) -> None:
    """Run one stage: what dvc.yaml calls. With PREFECT_API_URL set it is a flow on that server."""
    from tasks.config.presets import project_root, selected_run
    from tasks.runtime import leftovers
    from tasks.runtime.locks import making
    from tasks.runtime.store import Folders

    root = project_root()
    if "/.dvc/tmp/exps/" in f"{root.as_posix()}/":
        raise SettingError(
            "`dvc exp run --temp` and `--queue` make a run in a copy of the project, where the ledger is not: its "
            "budget would be spent a second time. Use `dvc exp run` alone. Nothing was made."
        )
    chosen = run or selected_run(root)
    with making(root, chosen):
        leftovers.remove(leftovers.of_a_run(Folders(root, chosen)))
        if os.environ.get("PREFECT_API_URL") and name != "parameters":
            from flows.pipeline import run_stage_as_flow

            run_stage_as_flow(root, chosen, name)
        else:
            from flows.stages import run_stage

            run_stage(root, chosen, name)


@app.command("deploy-local")
def deploy_local_command(
    deployment: Annotated[str, typer.Option(help="A deployment of prefect.yaml.")] = "try",
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


for command in (
    *(accounting.account, accounting.calibrate, advise.advise, audit.audit, check.check),
    *(compare.compare, doctor.doctor, export.export, images.images, init.init, membership.membership),
    *(params.params, predict.predict, stoppable()(promote.promote), serve.serve),
    *(statement.statement, statement.verify, stoppable()(sweep.sweep), stoppable()(track.track), ui.ui),
):
    app.command()(command)
for group in (ledger.ledger, party.party):
    app.add_typer(group)


def main(command: Callable[[], object] | None = None) -> None:
    """Run a command line; an error is printed as one red sentence, with the log of the run if there is one."""
    prepare_environment()
    if isinstance(sys.stdout, TextIOWrapper):  # a name may hold what the terminal's encoding does not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        (command or app)()
    except (TerrineError, LoggedError) as error:
        console = printer(stderr=True)
        console.print(Text(f"Error: {error}", style="red"), soft_wrap=True)
        for note in getattr(error, "__notes__", []):
            console.print(Text(note), soft_wrap=True)
        sys.exit(1)
