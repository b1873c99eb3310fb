"""Commands for projects and runs: `terrine init`, `run`, `sweep`, `presets` and `params`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.padding import Padding
from rich.text import Text

from flows.cli.check import refuse
from flows.cli.options import PresetOption, RunArgument, RunOption, SetOption, chosen_name
from flows.printing import plain_table, printer
from terrine.errors import SettingError, did_you_mean

if TYPE_CHECKING:
    from tasks.runtime.run import Run


def init(
    folder: Annotated[Path, typer.Argument(help="New folder, or a project to which to add missing files.")],
) -> None:
    """Create a project: params.yaml, presets, dvc.yaml, git and DVC."""
    from tasks.tools.project import create_project

    new, console = create_project(folder), printer(soft_wrap=True)
    if not new:
        console.print(f"{folder.resolve().name} is a complete project. Nothing was added.")
    elif "params.yaml" in new:
        where = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
        console.print(f"Created the project {folder.resolve().name}. Next: {where}terrine run")
    else:
        console.print(f"Added to the project {folder.resolve().name}: {', '.join(new)}.")


def run(
    name: RunArgument = None,
    run: RunOption = None,
    preset: PresetOption = None,
    set_: SetOption = None,
    seed: Annotated[int | None, typer.Option(help="Same as --set seed=N.")] = None,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Same as --set privacy.anyway=true: run despite warnings, such as too much noise."
        ),
    ] = False,
    no_server: Annotated[
        bool, typer.Option("--no-server", help="Run all tasks sequentially in this process, without Prefect.")
    ] = False,
) -> None:
    """Make a run, or complete it, and print the result.

    With --preset, a run named RUN is created: the name is permanent and appears in the published statement. Without
    --preset, the run is continued. Exit with status 1 if the data have changed since the run was made.
    """
    from flows.stages import check_run, clear
    from tasks.config.presets import derive, named_run, project_root, selected_run
    from tasks.pipeline.dataset import note_changed_files
    from tasks.reports.summary import costs
    from tasks.runtime.approval import uncovered
    from tasks.runtime.run import open_run
    from tasks.runtime.run_names import name_run
    from tasks.runtime.stage_graph import load
    from tasks.runtime.versioning import changed_stages, select
    from terrine.privacy.statement import read_statement

    root, console = project_root(), printer(soft_wrap=True)
    assignments = list(set_ or []) + ([f"seed={seed}"] if seed is not None else [])
    assignments += ["privacy.anyway=true"] if anyway else []
    if (name := chosen_name(name, run)) is not None:
        name = name_run(root, name, preset, assignments)
    else:
        name = derive(root, preset or selected_run(root), assignments)
        if preset is None and not assignments and name != (default := named_run(root)):
            console.print(f"{name} was selected last. The default run, which DVC makes: terrine run {default}")
    refuse(root, name)
    graph = check_run(root, name)
    select(root, name, graph)
    changed = changed_stages(root, name, graph)
    if changed:
        console.print(Text.assemble("Run ", (name, "bold")))
        from flows.pipeline import make_run  # imports Prefect

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
    if made.folders.statement.is_file():
        said = read_statement(made.folders.statement)
        if told := uncovered(made, said["release_id"], said):
            console.print(f"Note: {told}", style="yellow")
    if other_data:
        raise typer.Exit(1)


def log_again(run: Run) -> None:
    """Log a complete run to MLflow if the first attempt failed."""
    from tasks.runtime.locks import making
    from tasks.runtime.stage_graph import load
    from tasks.transcription.graph import pipeline_of

    if not (run.folders.private / "tracking.json").is_file():
        _, log_run = pipeline_of(run.params)["report"].tasks.split()
        with making(run.root, run.name):
            load(log_run).fn(run)


def sweep(
    vary: Annotated[list[str], typer.Option(help="Values to try: section.key=value,value. May be repeated.")],
    preset: PresetOption = None,
    set_: SetOption = None,
    select: Annotated[
        Literal["none", "evaluation", "released"],
        typer.Option(
            help="Name the best candidate by test accuracy (evaluation, for public benchmarks only) or by accuracies "
            "released with noise (released, see evaluation.epsilon)."
        ),
    ] = "none",
    workers: Annotated[int, typer.Option(min=1, help="Number of candidates made at the same time.")] = 1,
) -> None:
    """Make a run for each combination of values, and show ε of each and of the search.

    The account's budget must cover all candidates together before the first is made. Finished candidates of an earlier
    sweep are reused.
    """
    from flows.sweep import sweep as run_sweep

    result = run_sweep(vary, preset, set_, select, workers)
    if any(candidate["failed"] for candidate in result["candidates"]):
        raise typer.Exit(1)


def presets() -> None:
    """List presets by purpose, and the runs of this project."""
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
    prefix: Annotated[str, typer.Argument(help="Start of the settings to list, such as teachers.")] = "",
    run: Annotated[str | None, typer.Option("--run", help="Run or preset whose values are shown as well.")] = None,
) -> None:
    """List settings with default, allowed values, unit and description.

    `terrine params data.name` lists the datasets.
    """
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
            line.append(f"   for {', '.join(setting.kinds)}", "green")
        if setting.key in own and own[setting.key] != setting.default:
            line.append(f"   {run}: {own[setting.key]}", "magenta")
        console.print(line)
        console.print(Padding(setting.meaning, (0, 0, 0, 4)))


def _values_of_run(root: Path, name: str) -> dict[str, Any]:
    """Return the settings of a run or preset by section.key, with `auto` for settings not resolved yet."""
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


def stage(name: str, run: RunOption = None) -> None:
    """Run one stage, as dvc.yaml does; with PREFECT_API_URL set, as a flow on that server."""
    from tasks.config.presets import project_root, selected_run
    from tasks.runtime.locks import making
    from tasks.runtime.store import Folders, remove_leftovers, run_leftovers

    root = project_root()
    if "/.dvc/tmp/exps/" in f"{root.as_posix()}/":
        raise SettingError(
            "`dvc exp run --temp` and `--queue` copy the project without its ledger, and could spend its budget twice. "
            "Use `dvc exp run` without them. Nothing was made."
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
