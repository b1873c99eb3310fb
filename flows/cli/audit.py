"""`terrine audit`: attack the mechanisms as installed, or a run, and compare what leaks with what is charged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from flows.cli.attack import conclude, with_bar
from flows.cli.options import JsonOption
from flows.printing import printer

if TYPE_CHECKING:
    from tasks.runtime.run import Run


def audit(
    run: Annotated[
        str | None, typer.Option(help="Attack the mechanism of this run, and put the bound into its statement.")
    ] = None,
    neighbours: Annotated[
        int | None, typer.Option(help="Exchange so many units of the run's data instead, and count teachers that move.")
    ] = None,
    mechanism: Annotated[str, typer.Option(help="What to attack, without --run.")] = "gnmax",
    sigma: Annotated[float, typer.Option(help="Noise of the answers of gnmax, confident and histogram.")] = 10.0,
    scale: Annotated[float, typer.Option(help="Scale of lnmax's Laplace noise.")] = 2.0,
    threshold: Annotated[float, typer.Option(help="Threshold of confident.")] = 80.0,
    sigma1: Annotated[float, typer.Option(help="Noise of confident's threshold test.")] = 10.0,
    teachers: Annotated[int, typer.Option(help="Teachers behind the made-up histograms.")] = 100,
    runs: Annotated[int, typer.Option(help="Runs on either of two neighbouring histograms.")] = 400,
    queries: Annotated[int | None, typer.Option(help="Queries in a run; default: as many as show most.")] = None,
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-5,
    confidence: Annotated[float, typer.Option(help="Confidence of the whole audit.")] = 0.95,
    noise: Annotated[Literal["secure", "replay"], typer.Option(help="Source of the noise.")] = "secure",
    seed: Annotated[int, typer.Option(help="Seed of replayed noise.")] = 0,
    canaries: Annotated[
        int | None,
        typer.Option(
            help="Attack the whole path of a run instead, with so many planted records; at most its teachers."
        ),
    ] = None,
    shadows: Annotated[int, typer.Option(help="Runs with canaries, each with coins and noise of its own.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Attack a mechanism on made-up neighbouring data: exit code 1 when it leaks more than it charges.

    With --canaries, records made to be found are planted in copies of a run, and looked for in what the copies release.
    The outcome is private: it is written to data/private/RUN/canaries.json, never into the statement.
    """
    from tasks.auditing.mechanisms import audit as audit_mechanism
    from terrine.aggregation.registry import mechanism_of
    from terrine.privacy.noise import ReplayNoise, SecureNoise

    if canaries is not None:
        from flows.stages import run_through
        from tasks.auditing.canaries import audit_canaries
        from tasks.runtime.run import chosen_run

        subject = chosen_run(run)
        found = with_bar(
            "canaries", lambda tell: audit_canaries(subject, run_through, canaries, shadows, confidence, tell)
        )
        conclude(found, as_json, _show_canaries)
        return
    if neighbours is not None:
        exchange_units(run, neighbours, as_json)
        return
    if run is not None:
        conclude(audit_run(run, runs=runs, queries=queries, confidence=confidence), as_json, _show)
        return
    given = {"sigma": sigma, "scale": scale, "threshold": threshold, "sigma1": sigma1, "sigma2": sigma}
    result = audit_mechanism(
        mechanism_of({"mechanism": mechanism, **given}),
        noise=SecureNoise() if noise == "secure" else ReplayNoise(seed),
        teachers=teachers,
        runs=runs,
        queries=queries,
        delta=delta,
        confidence=confidence,
    )
    conclude(result, as_json, _show)


def audit_run(name: str, **options: Any) -> dict[str, Any]:
    """Audit the mechanism of a complete run with its own noise, and write its statement anew with the bound in it."""
    from flows.stages import check_released, state_anew
    from tasks.auditing.mechanisms import audit as audit_mechanism
    from tasks.runtime.accounts import noise_source
    from tasks.runtime.assurance import record_audit
    from tasks.runtime.releases import spent_on_inputs
    from tasks.runtime.run import chosen_run
    from terrine.aggregation.sums import mu_left
    from terrine.errors import ArtefactError, SettingError

    run = chosen_run(name)
    if run.params.transcription is not None:
        raise SettingError(f"The run {name} is a transcription: terrine audit is for votes and for sums over records.")
    if not run.folders.statement.is_file():
        raise ArtefactError(f"The run {name} has released nothing yet: make it first (terrine run).")
    check_released(run.root, name)
    settings: Any = run.params.aggregation
    sums = settings.reveals == "sums"
    result = audit_mechanism(
        settings,
        noise=noise_source(run),
        teachers=run.params.teachers.voters(run.params.partition.teachers),
        delta=settings.delta,
        mu=mu_left(settings.epsilon, settings.delta, spent_on_inputs(run.params)) if sums else None,
        **options,
    )
    record_audit(run, result)
    state_anew(run.root, name)
    return result


def _show(result: dict[str, Any]) -> None:
    console = printer()
    each = "coins" if "mu" in result else "queries"
    table = Table("attack", each, "runs", "ε charged", "ε ≥", "μ charged", "μ ≥", box=None, pad_edge=False)
    for entry in result["canaries"]:
        table.add_row(
            Text.assemble(entry["name"], (" caught" if entry["caught"] else "", "bold red")),
            f"{entry[each]:,}",
            str(entry["runs"]),
            *(
                "" if entry[name] is None else f"{entry[name]:.3f}"
                for name in ("epsilon_charged", "epsilon_at_least", "mu_charged", "mu_at_least")
            ),
        )
    of = "rows of made-up features" if "mu" in result else f"{result['teachers']} teachers"
    console.print(
        f"{result['mechanism']}, {result['noise']['kind']} noise, {of}, "
        f"δ = {result['delta']:g}, confidence {result['confidence']:.0%}\n"
    )
    console.print(table)
    if result["caught"]:
        console.print("\nIt leaks more than it charges.", style="bold red")
    else:
        console.print("\nNothing beyond the charge was found.")
    console.print(result["note"])


def _show_canaries(result: dict[str, Any]) -> None:
    console = printer()
    console.print(
        f"{result['canaries']} canaries ({result['unit']}) in each of {result['shadows']} shadow runs, "
        f"{result['mechanism']}, {result['noise']['kind']} noise\n"
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("moved by a canary", f"{result['moved']:.0%}", "100% is the worst case, and charged")
    table.add_row("coins guessed", f"{result['right']} of {result['guesses']} right", "half is chance")
    table.add_row(
        f"ε at least, with confidence {result['confidence']:.0%}",
        f"{result['epsilon_at_least']:.3f}",
        f"{result['epsilon_charged']:.3f} is charged, δ = {result['delta']:g}",
    )
    table.add_row("ε at least, were there no noise", f"{result['epsilon_without_noise']:.3f}", "the audit's power")
    console.print(table)
    if result["fault"]:
        console.print(f"\n{result['fault']}", style="bold red")
    if result["epsilon_at_least"] > result["epsilon_charged"]:
        console.print("\nIt leaks more than it charges.", style="bold red")
    elif not result["caught"]:
        console.print("\nNothing beyond the charge was found; that proves nothing.")
    console.print(result["notice"])


def exchange_units(run: str | None, count: int, as_json: bool) -> None:
    """Try `count` units of a run (None: the one selected last); exit code 1 when one moves too much."""
    from tasks.auditing.neighbours import audit_neighbours
    from tasks.runtime.run import chosen_run

    subject = chosen_run(run)
    conclude(
        with_bar("neighbours", lambda tell: audit_neighbours(subject, vote_again, count, tell)),
        as_json,
        _show_neighbours,
    )


def vote_again(scratch: Run) -> None:
    """Take a run from its dataset to its votes; averages that were released are there already."""
    from flows.stages import run_through

    run_through(scratch, "partition", "partition")
    if not scratch.params.teachers.releases_averages:
        run_through(scratch, "average", "average")
    run_through(scratch, "teach", "vote")


def _show_neighbours(result: dict[str, Any]) -> None:
    console = printer()
    unit, most = result["unit"], result["most"]
    console.print(f"{result['run']}: {result['tried']} of {result['units']:,} units tried ({unit})\n")
    votes = "voters" in result
    columns = ("teachers that moved", "votes that changed") if votes else ("sums moved, of what is charged",)
    table = Table(f"{unit} and what was done", *columns, box=None, pad_edge=False)
    for entry in result["steps"]:
        moved = (
            (f"{entry['teachers']} of {result['voters']}", f"{entry['votes']:,} of {result['votes']:,}")
            if votes
            else (f"{100 * entry['share']:.1f} %",)
        )
        table.add_row(f"{entry['unit']} {entry['step']}", *moved)
    console.print(table)
    if result["caught"]:
        most = f"{most} teachers" if votes else f"the sums {most:.2f} times as far as is charged for"
        console.print(
            Text.assemble(
                (f"\nOne {unit} moved {most}.", "bold red"),
                f"{' The guarantee counts one:' if votes else ''} What a release of this run is charged does not hold. "
                "Publish nothing of it before the cause is found.",
            )
        )
    else:
        most = "more than one teacher" if votes else "the sums by more than is charged"
        console.print(f"\nNo unit moved {most}; that proves nothing about the others.")
