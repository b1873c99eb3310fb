"""`terrine audit`: attacks on mechanisms, runs and students, compared with the charged ε."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from flows.cli.options import JsonOption, RunArgument, chosen_name
from flows.printing import plain_table, printer
from terrine.errors import ArtefactError, SettingError

if TYPE_CHECKING:
    from tasks.runtime.run import Run

Result = dict[str, Any]
_run_option = partial(typer.Option, rich_help_panel="Attacks on a run")
_mechanism_option = partial(typer.Option, rich_help_panel="Attack on a mechanism")


def audit(
    name: RunArgument = None,
    run: Annotated[
        str | None,
        _run_option(
            "--run", help="Run to attack. Default: the run selected last, or no run if no attack on a run is requested."
        ),
    ] = None,
    canaries: Annotated[
        int | None, _run_option(help="Number of records to plant in copies of the run, at most one per teacher.")
    ] = None,
    neighbours: Annotated[
        int | None, _run_option(help="Number of units to exchange, counting the affected teachers.")
    ] = None,
    membership: Annotated[
        bool, _run_option("--membership", help="Run membership inference against the student (LiRA).")
    ] = False,
    shadows: Annotated[
        int | None, _run_option(help="Number of shadow runs. Default: 1 with --canaries, 16 with --membership.")
    ] = None,
    mechanism: Annotated[str, _mechanism_option(help="Mechanism to attack.")] = "gnmax",
    sigma: Annotated[
        float, _mechanism_option(help="Noise of gnmax, confident and histogram on answers, in votes.")
    ] = 10.0,
    scale: Annotated[float, _mechanism_option(help="Scale of the Laplace noise of lnmax, in votes.")] = 2.0,
    threshold: Annotated[float, _mechanism_option(help="Threshold of confident, in votes.")] = 80.0,
    sigma1: Annotated[float, _mechanism_option(help="Noise of the threshold test of confident, in votes.")] = 10.0,
    teachers: Annotated[int, _mechanism_option(help="Number of teachers in the synthetic histograms.")] = 100,
    runs: Annotated[int, _mechanism_option(help="Number of runs on each of two neighbouring histograms.")] = 400,
    queries: Annotated[
        int | None,
        _mechanism_option(help="Number of queries in each run of the mechanism. Default: the most informative number."),
    ] = None,
    delta: Annotated[float, _mechanism_option(help="δ of the charged ε.")] = 1e-5,
    noise: Annotated[Literal["secure", "replay"], _mechanism_option(help="Noise source.")] = "secure",
    seed: Annotated[int, _mechanism_option(help="Seed of replay noise.")] = 0,
    confidence: Annotated[float, typer.Option(help="Confidence level of the lower bound on ε.")] = 0.95,
    as_json: JsonOption = False,
) -> None:
    """Attack a mechanism on synthetic histograms, or a run. Exit with status 1 if more leaks than is charged.

    Results of --canaries, --neighbours and --membership are private. Results of attacks on private records are stored
    in data/private/RUN/, not in the statement.
    """
    from tasks.runtime.run import chosen_run

    run = chosen_name(name, run)
    if (canaries is not None) + (neighbours is not None) + membership > 1:
        raise SettingError("--canaries, --neighbours and --membership are separate attacks: give one.")
    if canaries is not None:
        from flows.stages import run_through
        from tasks.auditing.canaries import audit_canaries

        subject, count = chosen_run(run), shadows or 1
        found = with_bar(
            "canaries", lambda tell: audit_canaries(subject, run_through, canaries, count, confidence, tell)
        )
        conclude(found, as_json, _show_canaries)
    elif neighbours is not None:
        from tasks.auditing.neighbours import audit_neighbours

        subject = chosen_run(run)
        found = with_bar("neighbours", lambda tell: audit_neighbours(subject, vote_again, neighbours, tell))
        conclude(found, as_json, _show_neighbours)
    elif membership:
        from tasks.auditing.membership import audit_student

        subject, count = chosen_run(run), shadows or 16
        found = with_bar("shadow runs", lambda tell: audit_student(subject, make_shadow, count, confidence, tell))
        conclude(found, as_json, lambda result: _show_membership(subject.name, result))
    elif run is not None:
        conclude(audit_run(run, runs=runs, queries=queries, confidence=confidence), as_json, _show_mechanism)
    else:
        from tasks.auditing.mechanisms import audit as audit_mechanism
        from terrine.aggregation.mechanism import parse_mechanism
        from terrine.privacy.noise import ReplayNoise, SecureNoise

        given = {"sigma": sigma, "scale": scale, "threshold": threshold, "sigma1": sigma1, "sigma2": sigma}
        result = audit_mechanism(
            parse_mechanism({"mechanism": mechanism, **given}),
            noise=SecureNoise() if noise == "secure" else ReplayNoise(seed),
            teachers=teachers,
            runs=runs,
            queries=queries,
            delta=delta,
            confidence=confidence,
        )
        conclude(result, as_json, _show_mechanism)


def audit_run(name: str, **options: Any) -> Result:
    """Audit the mechanism of a complete run and add the lower bound to its statement."""
    from flows.stages import check_released, rewrite_statement
    from tasks.auditing.mechanisms import audit as audit_mechanism
    from tasks.runtime.accounts import noise_source
    from tasks.runtime.releases import inputs_cost, record_audit
    from tasks.runtime.run import chosen_run
    from terrine.aggregation.sums import mu_left

    run = chosen_run(name)
    if run.params.transcription is not None:
        raise SettingError(f"Run {name} is a transcription. Only mechanisms of votes and sums can be audited.")
    if not run.folders.statement.is_file():
        raise ArtefactError(f"Run {name} has no release. Make it first: terrine run {name}")
    check_released(run.root, name)
    settings: Any = run.params.aggregation
    sums = settings.reveals == "sums"
    result = audit_mechanism(
        settings,
        noise=noise_source(run),
        teachers=run.params.teachers.voters(run.params.partition.teachers),
        delta=settings.delta,
        mu=mu_left(settings.epsilon, settings.delta, inputs_cost(run.params)) if sums else None,
        **options,
    )
    record_audit(run, result)
    rewrite_statement(run.root, name)
    return result


def make_shadow(shadow: Run) -> None:
    """Run all stages of a shadow run, from its records to its student."""
    from flows.stages import run_through

    transcribed = shadow.params.transcription is not None
    run_through(shadow, "partition", "labels" if transcribed else "partition")
    run_through(shadow, *(("teach", "transcribe") if transcribed else ("average", "student")))


def vote_again(scratch: Run) -> None:
    """Run the stages from the dataset to the votes, without recomputing released averages."""
    from flows.stages import run_through

    run_through(scratch, "partition", "partition")
    if not scratch.params.teachers.releases_averages:
        run_through(scratch, "average", "average")
    run_through(scratch, "teach", "vote")


def with_bar(what: str, attack: Callable[[Callable[[float, str], None]], Result]) -> Result:
    """Run an attack with a progress bar, or with occasional lines if there is no terminal.

    Args:
        what: Title of the progress bar.
        attack: The attack, called with a progress function (share done, next step).
    """
    from rich.progress import Progress

    from tasks.runtime.progress import CURRENT, lines

    console = printer(stderr=True)
    if not console.is_terminal:
        with CURRENT.within_more():
            return attack(lines(what, console.print))
    with CURRENT.within_more(), Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        return attack(lambda share, text: bar.update(task, completed=share, description=text))


def conclude(result: Result, as_json: bool, show: Callable[[Result], None]) -> None:
    """Print a result; exit with status 1 if the leakage exceeds the charged ε."""
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        show(result)
    if result["caught"]:
        raise typer.Exit(1)


def _show_mechanism(result: Result) -> None:
    console = printer()
    each = "coins" if "mu" in result else "queries"
    table = plain_table("attack", each, "runs", "ε charged", "ε ≥", "μ charged", "μ ≥")
    for entry in result["canaries"]:
        bounds = (entry[name] for name in ("epsilon_charged", "epsilon_at_least", "mu_charged", "mu_at_least"))
        table.add_row(
            Text.assemble(entry["name"], (" caught" if entry["caught"] else "", "bold red")),
            f"{entry[each]:,}",
            str(entry["runs"]),
            *("" if bound is None else f"{bound:.3f}" for bound in bounds),
        )
    subject = "synthetic rows" if "mu" in result else f"{result['teachers']} teachers"
    console.print(
        f"{result['mechanism']}, {result['noise']['kind']} noise, {subject}, "
        f"δ = {result['delta']:g}, confidence {result['confidence']:.0%}\n"
    )
    console.print(table)
    if result["caught"]:
        console.print("\nMore leaks than is charged.", style="bold red")
    else:
        console.print("\nNo leak beyond the charged ε was found.")
    console.print(result["note"])


def _show_canaries(result: Result) -> None:
    console = printer()
    console.print(
        f"{result['canaries']} canaries ({result['unit']}) in each of {result['shadows']} shadow runs, "
        f"{result['mechanism']}, {result['noise']['kind']} noise\n"
    )
    table = plain_table()
    table.add_row("votes moved by a canary", f"{result['moved']:.0%}", "charged for 100%, the worst case")
    table.add_row("coins guessed", f"{result['right']} of {result['guesses']} right", "chance: half")
    table.add_row(
        f"ε at least, with confidence {result['confidence']:.0%}",
        f"{result['epsilon_at_least']:.3f}",
        f"charged: {result['epsilon_charged']:.3f}, δ = {result['delta']:g}",
    )
    table.add_row("ε at least, without noise", f"{result['epsilon_without_noise']:.3f}", "power of the audit")
    console.print(table)
    if result["fault"]:
        console.print(f"\n{result['fault']}", style="bold red")
    if result["epsilon_at_least"] > result["epsilon_charged"]:
        console.print("\nMore leaks than is charged.", style="bold red")
    elif not result["caught"]:
        console.print("\nNo leak beyond the charged ε was found. This proves nothing.")
    console.print(result["notice"])


def _show_neighbours(result: Result) -> None:
    console = printer()
    unit, most = result["unit"], result["most"]
    console.print(f"{result['run']}: {result['tried']} of {result['units']:,} units tried ({unit})\n")
    votes = "voters" in result
    columns = ("teachers changed", "votes changed") if votes else ("change of the sums, of that charged",)
    table = plain_table(f"{unit} and change", *columns)
    for entry in result["steps"]:
        moved = (
            (f"{entry['teachers']} of {result['voters']}", f"{entry['votes']:,} of {result['votes']:,}")
            if votes
            else (f"{100 * entry['share']:.1f} %",)
        )
        table.add_row(f"{entry['unit']} {entry['step']}", *moved)
    console.print(table)
    if result["caught"]:
        most = f"{most} teachers, not one" if votes else f"the sums {most:.2f} times as far as is charged"
        console.print(
            Text.assemble(
                (f"\nOne {unit} changed {most}.", "bold red"),
                " The charged ε does not hold. Publish nothing of this run before the cause is found.",
            )
        )
    else:
        most = "more than one teacher" if votes else "the sums by more than is charged"
        console.print(f"\nNo unit changed {most}. This proves nothing about other units.")


def _show_membership(run: str, result: Result) -> None:
    console = printer()
    console.print(f"{run}: {result['shadows']} shadow runs, {result['units']:,} units ({result['unit']})\n")
    table, auc, charged = plain_table(), result["auc"], result["epsilon_charged"]
    table.add_row(
        "area under the ROC curve", f"{auc['value']:.3f} ({auc['low']:.3f} to {auc['high']:.3f})", "chance: 0.5"
    )
    for who, found in (("members", result["members_found"]), ("non-members", result["others_found"])):
        for fpr, rate in found.items():
            shown = f"{rate['value']:.2%} ({rate['low']:.2%} to {rate['high']:.2%})"
            table.add_row(f"{who} found at {float(fpr):.1%} false alarms", shown, f"chance: {float(fpr):.2%}")
    table.add_row(f"ε at least, with confidence {result['confidence']:.0%}", f"{result['epsilon_at_least']:.3f}", "")
    table.add_row("ε charged", "none: NOT PRIVATE" if charged is None else f"{charged:.4f}", f"δ = {result['delta']:g}")
    console.print(table)
    if charged is None:
        console.print("\nThe release guarantees nothing that an attack could refute.")
    elif result["caught"]:
        console.print("\nThe student leaks more than is charged.", style="bold red")
    else:
        console.print("\nNo leak beyond the charged ε was found. This proves nothing.")
    console.print(result["notice"])
