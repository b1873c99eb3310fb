"""`terrine check`: check a run or the installation, or advise a mechanism for a budget."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from flows.cli.options import PresetOption, RunArgument, RunOption, SetOption, chosen_name
from flows.printing import plain_table, printer
from terrine.errors import SettingError, TerrineError
from terrine.geometry import in_words

if TYPE_CHECKING:
    from rich.console import Console

    from tasks.tools.check import Finding
    from terrine.planning import Advice

_advice_option = partial(typer.Option, rich_help_panel="Advice without data")


def check(
    name: RunArgument = None,
    run: RunOption = None,
    preset: PresetOption = None,
    set_: SetOption = None,
    installation: Annotated[
        bool, typer.Option("--installation", help="Check versions, devices and the project instead of a run.")
    ] = False,
    units: Annotated[int | None, _advice_option(min=1, help="Approximate number of records or groups.")] = None,
    classes: Annotated[int | None, _advice_option(min=2, help="Number of classes.")] = None,
    epsilon: Annotated[float | None, _advice_option(help="ε of the run.")] = None,
    delta: Annotated[float, _advice_option(help="δ of the run.")] = 1e-5,
    group: Annotated[
        bool, _advice_option("--group", help="Protect groups instead of records (privacy.unit=group).")
    ] = False,
    features: Annotated[int, _advice_option(min=1, help="Number of features of a linear head.")] = 200,
    apart: Annotated[bool, _advice_option("--apart", help="Records may not be added up.")] = False,
    one_round: Annotated[bool, _advice_option("--one-round", help="Data owners can answer only once.")] = False,
    not_linear: Annotated[
        bool, _advice_option("--not-linear", help="A linear head on fixed features is not sufficient.")
    ] = False,
) -> None:
    """Check data, settings and budget of a run. Exit with status 1 if the run would be refused.

    A sample of images is decoded. Nothing is trained, charged or stored.

    With --units, no data are read. The command then advises a mechanism, the number of teachers and the noise.
    """
    if installation:
        _show_installation()
        return
    if units is not None:
        from terrine.planning import advise

        if classes is None or epsilon is None:
            raise SettingError("--units needs --classes and --epsilon.")
        _show_advice(
            advise(
                units,
                classes=classes,
                features=features,
                epsilon=epsilon,
                delta=delta,
                unit="group" if group else "record",
                apart=apart,
                one_round=one_round,
                linear=not not_linear,
            )
        )
        return
    from tasks.config.presets import derive, project_root, selected_run
    from tasks.runtime.run_names import name_run
    from tasks.tools.check import inspect_run

    root, assignments = project_root(), list(set_ or [])
    if (name := chosen_name(name, run)) is not None:
        name = name_run(root, name, preset, assignments, save=False)
    else:
        name = derive(root, preset or selected_run(root), assignments, save=False)
    show(found := inspect_run(root, name), printer())
    if found.stops:
        raise typer.Exit(1)


def _show_installation() -> None:
    """Print versions, devices and the project; exit with status 1 if something is missing."""
    from tasks.tools.project import check_installation

    found, missing = check_installation()
    table, console = plain_table(), printer(soft_wrap=True)
    for row in found.items():
        table.add_row(*row)
    console.print(table)
    for sentence in missing:
        console.print(f"Missing: {sentence}.", style="red")
    if missing:
        raise typer.Exit(1)
    console.print("Nothing is missing.", style="green")


def _show_advice(found: Advice) -> None:
    console = printer()
    console.print(f"aggregation.mechanism={found.mechanism}", style="bold")
    if found.mechanism == "histogram":
        votes = found.votes
        console.print(
            f"{votes.teachers:,} teachers, {votes.queries:,} queries, noise of {votes.sigma:.1f} votes on each count "
            "(as chosen by auto)"
        )
    console.print(found.reason)
    if not found.useful:
        enough = "" if found.epsilon is None else f" ε = {found.epsilon:g} would suffice."
        console.print(Text.assemble(("Too weak:", "red"), f" a student would learn mostly noise.{enough}"))
        raise typer.Exit(1)


def refuse(root: Path, name: str) -> None:
    """Check a run before it starts; one on public data is not refused.

    Raises:
        SettingError: If the run would be refused.
    """
    from tasks.config.presets import resolve
    from tasks.runtime.run import Run
    from tasks.runtime.store import Folders
    from tasks.tools.check import WEAK_BUT_PUBLIC, inspect_run
    from tasks.transcription.release import is_of_public

    if Folders(root, name).report.is_file():
        return
    if is_of_public(Run(root, name, resolve(root, name))):
        with suppress(TerrineError):  # the run itself reports it
            if WEAK_BUT_PUBLIC in inspect_run(root, name).notes:
                printer().print(Text.assemble(("Note:", "yellow"), f" {WEAK_BUT_PUBLIC}"))
        return
    found = inspect_run(root, name)
    show(found, printer(), findings=not found.stops)
    if found.stops:
        raise SettingError("\n".join(found.stops))


def show(found: Finding, console: Console, *, findings: bool = True) -> None:
    """Print private figures about a run to the terminal, with notes and warnings if `findings` is true."""
    survey = found.survey
    table = plain_table(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("run", found.run.name)
    public = f", {survey.public:,} public queries" if survey.public else ""
    training, held_out = survey.records
    table.add_row("records (private)", f"{training:,} for training, {held_out:,} for testing{public}")
    if survey.groups is not None:
        training, held_out = survey.groups
        table.add_row("groups (private)", f"{training:,} for training, {held_out:,} for testing")
    scale = found.run.params.data.scale
    what = "classes" if scale is None else "bins" if scale.edges else "grades"
    table.add_row("findings (private)" if survey.several else f"{what} (private)", _classes(found))
    if survey.skipped:
        skipped = ", ".join(f"{count:,} {kind}" for kind, count in survey.skipped.most_common(6))
        others = sum(count for _, count in survey.skipped.most_common()[6:])
        table.add_row("skipped", f"{skipped}{f' and {others:,} others' if others else ''}: unsupported file types")
    if survey.columns:
        table.add_row("columns", _columns(found))
    if survey.geometry:
        table.add_row("images", _geometry(found))
    if found.plan is not None:
        table.add_row("votes", _votes(found))
    if found.strength is not None:
        table.add_row("sums", _sums(found))
    table.add_row("price", _price(found))
    table.add_row("which ε?", "docs/which-epsilon.md compares ε with published values")
    if found.claimed is not None:
        exact = "no ε" if found.exact is None else f"ε = {found.exact:.4f}"
        wrong = found.exact is None or found.claimed < found.exact
        claim = f"ε = {found.claimed:.4f}{', which does not hold' if wrong else ''}; exact: {exact}"
        table.add_row("paper's claim", claim)
    if found.minutes is not None:
        table.add_row("time", f"about {max(1.0, found.minutes):.0f} min on two cores")
    console.print(table)
    if findings:
        for note in found.notes:
            console.print(Text.assemble(("Note:", "yellow"), f" {note}"))
        for sentence in found.refusals + found.doubts:
            word = "Refused" if sentence in found.stops else "Warning"
            console.print(Text.assemble((f"{word}:", "red"), f" {sentence}"))


def _classes(found: Finding) -> str:
    survey = found.survey
    listed = list(zip(survey.train.tolist(), survey.class_names, strict=True))
    counts = sorted(listed)
    first = counts[:-13:-1] if found.run.params.data.scale is None else listed[:12]
    shown = ", ".join(f"{name} {count:,}" for count, name in first)
    more = f", ... ({len(counts)} in all)" if len(counts) > 12 else ""
    return f"{shown}{more}; the smallest is {counts[0][1]} with {counts[0][0]:,}"


def _columns(found: Finding) -> str:
    def listed(names: tuple[str, ...]) -> str:
        return ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")

    return "; ".join(f"{kind}: {listed(names)}" for kind, names in found.survey.columns.items())


def _geometry(found: Finding) -> str:
    survey, data = found.survey, found.run.params.data
    kinds = ", ".join(
        f"{count:,} of {width} x {height} {mode}" for (width, height, mode), count in survey.geometry.most_common(3)
    )
    others = len(survey.geometry) - 3
    more = f", and {others} other sizes or modes" if others > 0 else ""
    colour = "grey" if data.channels == 1 else "colour"
    return f"{kinds}{more} (of {survey.inspected:,} sampled); all become {in_words(data.size)}, {colour}"


def _votes(found: Finding) -> str:
    from terrine.planning import judge_votes

    plan, chosen = found.plan, f" ({', '.join(found.automatic)}: auto)" if found.automatic else ""
    assert plan is not None
    teachers = f"{plan.teachers:,} teachers"
    if found.teachers is not None and found.teachers[0] < found.teachers[1]:
        teachers = f"{found.teachers[0]:,} to {found.teachers[1]:,} teachers (the run counts units with noise)"
    return (
        f"{teachers} on {plan.queries:,} queries, noise of {plan.sigma:.1f} votes on each count: "
        f"{judge_votes(plan)}{chosen}"
    )


def _sums(found: Finding) -> str:
    from terrine.planning import judge_sums

    assert found.strength is not None
    return (
        f"{found.run.params.aggregation.mechanism} of records are added up with noise, without votes: "
        f"{judge_sums(found.strength)}"
    )


def _price(found: Finding) -> str:
    from terrine.privacy.accounting.gaussian import round_up

    params = found.run.params
    parts = params.transcription or params.teachers
    if parts.unprotected:
        return "no guarantee: NOT PRIVATE"
    if found.cost is None or found.total is None:
        return "unknown before the run"
    account = "" if params.ledger.account is None else f"account {params.ledger.account}: "
    spent = f"spent so far: ε = {round_up(found.spent):.4g}" if found.spent else "nothing spent so far"
    budget = "no budget" if params.ledger.epsilon is None else f"budget ε = {params.ledger.epsilon:g}"
    if not found.cost:
        return f"{account}{budget}, {spent}; this run costs nothing, because its releases exist already"
    return (
        f"{account}{budget}, {spent}; this run costs up to ε = {round_up(found.cost):.4g}; total "
        f"ε = {round_up(found.total):.4g} at δ = {(params.transcription or params.aggregation).delta:g}"
    )
