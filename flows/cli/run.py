"""Commands about projects and runs: `terrine init`, `run`, `presets` and `params`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from flows.cli.check import refuse
from flows.cli.options import PresetOption, SetOption
from flows.printing import plain_table, printer
from terrine.errors import SettingError, did_you_mean

if TYPE_CHECKING:
    from tasks.runtime.run import Run


def init(folder: Annotated[Path, typer.Argument(help="A new folder; or a project, which gets what it lacks.")]) -> None:
    """Make a project in a folder: parameters, presets, dvc.yaml, git and DVC."""
    from tasks.tools.project import begin

    new, console = begin(folder), printer(soft_wrap=True)
    if not new:
        console.print(f"{folder} is a project, and lacks nothing.")
    elif "params.yaml" in new:
        console.print(f"{folder} is a project now. Next: cd {folder} && terrine run")
    else:
        console.print(f"{folder} was a project, and has new files: {', '.join(new)}.")


def run(
    preset: PresetOption = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Permanent name of the run. Creates the run with --preset, otherwise continues it. Names are public: "
            "the statement, the student and MLflow show them.",
        ),
    ] = None,
    set_: SetOption = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=N.")] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Short for --set privacy.anyway=true: run even if votes drown in noise.")
    ] = False,
    no_server: Annotated[
        bool, typer.Option("--no-server", help="Without Prefect: tasks one after the other, in this process.")
    ] = False,
) -> None:
    """Make a run and print the result; a complete run is not made again, only logged to MLflow if that failed.

    If the data have changed since the run read them, the command says so and exits with status 1.
    """
    from flows.stages import check_run, clear, make_run
    from tasks.config.presets import derive, project_root, selected_run
    from tasks.pipeline.dataset import note_changed_files
    from tasks.reports.summary import costs
    from tasks.runtime.run import open_run
    from tasks.runtime.run_names import name_run
    from tasks.runtime.stage_graph import load
    from tasks.runtime.versioning import changed_stages, select

    root, console = project_root(), printer(soft_wrap=True)
    assignments = list(set_ or []) + ([f"seed={seed}"] if seed is not None else [])
    assignments += ["privacy.anyway=true"] if anyway else []
    if name is not None:
        name = name_run(root, name, preset, assignments)
    else:
        name = derive(root, preset or selected_run(root), assignments)
    refuse(root, name)
    graph = check_run(root, name)
    select(root, name, graph)
    changed = changed_stages(root, name, graph)
    if changed:
        console.print(Text.assemble("Run ", (name, "bold")))
        make_run(root, name, with_server=not no_server)
    else:
        clear(root, name)
    made = open_run(root, name)
    other_data = note_changed_files(made)
    if not changed:
        log_again(made)
        done = " is finished, but its data have changed since." if other_data else " is up to date: nothing to do."
        console.print(Text.assemble("Run ", (name, "bold"), done))
    console.print(load(graph.result)(made))
    if not changed:
        console.print(costs(made, graph.names), soft_wrap=False)
    if other_data:
        raise typer.Exit(1)


def log_again(run: Run) -> None:
    """Log a complete run to MLflow if that failed when it was made."""
    from tasks.runtime.locks import making
    from tasks.runtime.stage_graph import load
    from tasks.transcription.graph import pipeline_of

    if not (run.folders.private / "tracking.json").is_file():
        _, log_run = pipeline_of(run.params)["report"].tasks.split()
        with making(run.root, run.name):
            load(log_run).fn(run)


def presets() -> None:
    """List the presets by purpose, and the runs of this project."""
    from tasks.config.presets import presets_by_group, project_root
    from tasks.runtime.run_names import states

    root, console = project_root(), printer()
    groups = {title: [(preset.name, preset.description) for preset in found] for title, found in presets_by_group(root)}
    for title, rows in (groups | {"Your runs": states(root)}).items():
        table = plain_table(title=title, title_justify="left")
        table.add_column(no_wrap=True, overflow="fold")
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        if rows:
            console.print(table, "")


def params(
    prefix: Annotated[str, typer.Argument(help="List only settings that start with this, for example teachers.")] = "",
    run: Annotated[
        str | None, typer.Option(help="Also show the values of this run or preset, next to the defaults.")
    ] = None,
) -> None:
    """List all settings: values, default, unit and meaning. `terrine params data.name` lists the datasets."""
    from tasks.config.listing import list_settings
    from tasks.config.params import FAMILIES, Params
    from tasks.config.presets import project_root
    from tasks.config.values import as_yaml

    everything = list(list_settings((Params,), FAMILIES))
    chosen = [setting for setting in everything if setting.key.startswith(prefix)]
    if not chosen:
        known = dict.fromkeys(setting.key.partition(".")[0] for setting in everything)
        near = did_you_mean(prefix, [*known, *(setting.key for setting in everything)])
        raise SettingError(f"No setting starts with '{prefix}'.{near} Sections: {', '.join(known)}.")
    own = _values_of_run(project_root(), run) if run else {}
    console = printer()
    for setting in chosen:
        default = "required" if setting.required else as_yaml(setting.default)
        line = Text.assemble((setting.key, "bold"), " = ", (default, "cyan"))
        line.append(f"   {setting.values}" + (f", {setting.unit}" if setting.unit else ""), "dim")
        if setting.kinds:
            line.append(f"   of {', '.join(setting.kinds)}", "green")
        if setting.key in own and own[setting.key] != setting.default:
            line.append(f"   {run}: {own[setting.key]}", "magenta")
        console.print(line)
        console.print(Padding(setting.meaning, (0, 0, 0, 4)))


def _values_of_run(root: Path, name: str) -> dict[str, Any]:
    """Return the settings of a run or preset by section.key; `auto` if not resolved yet."""
    from tasks.config.automatic import replace_auto
    from tasks.config.params import AUTO
    from tasks.config.presets import load_values, resolve
    from tasks.config.values import flat
    from tasks.runtime.parameters import resolve_without_data

    params, chosen = resolve(root, name), resolve_without_data(root, name)
    if chosen is not None:
        return flat(chosen.model_dump(mode="json"))
    automatic = replace_auto(load_values(root, name))[1]
    return flat(params.model_dump(mode="json")) | {".".join(key): AUTO for key in automatic}


def stage(
    name: str, run: Annotated[str | None, typer.Option(help="The run; default: the one selected last.")] = None
) -> None:
    """Run one stage, as dvc.yaml does. With PREFECT_API_URL set it is a flow on that server."""
    from tasks.config.presets import project_root, selected_run
    from tasks.runtime.locks import making
    from tasks.runtime.store import Folders, remove_leftovers, run_leftovers

    root = project_root()
    if "/.dvc/tmp/exps/" in f"{root.as_posix()}/":
        raise SettingError(
            "`dvc exp run --temp` and `--queue` make a run in a copy of the project, which lacks the ledger: its "
            "budget would be spent a second time. Use `dvc exp run` without them. Nothing was made."
        )
    chosen = run or selected_run(root)
    with making(root, chosen):
        remove_leftovers(run_leftovers(Folders(root, chosen)))
        if os.environ.get("PREFECT_API_URL") and name != "parameters":
            from flows.pipeline import stage_flow

            stage_flow(chosen, name)
        else:
            from flows.stages import run_stage

            run_stage(root, chosen, name)
