"""`terrine party`: take part in a collaboration as a teacher party, the guardian or the student party.

terrine party init trial --parties 3 --teachers 12 --queries-from data/public/terrine-digits ...
terrine party guardian --config trial/guardian/party.yaml
terrine party student --config trial/student/party.yaml
terrine party teacher --config trial/party-1/party.yaml
terrine party learn --config trial/student/party.yaml
terrine party trial trial          # or all of them at once, each in a process of its own
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.printing import printer

ConfigOption = Annotated[Path, typer.Option("--config", help="The party's party.yaml.")]

party = typer.Typer(
    name="party",
    help="Vote together with other institutions; nobody sees anybody's votes (docs/collaboration.md).",
    no_args_is_help=True,
    add_completion=False,
)
console = printer()


def register(app: typer.Typer) -> None:
    """Add `party` to the command line."""
    app.add_typer(party)


@party.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where the trial is made; it must not exist.")],
    run: Annotated[
        str | None,
        typer.Option(help="Take queries, classes, mechanism and budget from this run; default: params.yaml's."),
    ] = None,
    parties: Annotated[int, typer.Option(help="Teacher parties.")] = 3,
    minimum: Annotated[int | None, typer.Option(help="Fewest teachers that must be there; default: all.")] = None,
    guardian: Annotated[str, typer.Option(help="host:port of the guardian; port 0 for any.")] = "127.0.0.1:0",
    student: Annotated[str, typer.Option(help="host:port of the student party; port 0 for any.")] = "127.0.0.1:0",
    account: Annotated[str, typer.Option(help="Name of the parties' data in the guardian's ledger.")] = "collaboration",
    epsilon: Annotated[
        float | None, typer.Option(help="Budget of the account over all releases; default: that of the release.")
    ] = None,
    edition: Annotated[str, typer.Option(help="Names this vote; another one asks again, at new cost.")] = "",
    days: Annotated[float, typer.Option(help="For how long certificates are good.")] = 90,
) -> None:
    """Make a trial: a certificate authority, and a folder for every party with its credentials and configuration."""
    from tasks.parties.init import init_from_run

    terms = init_from_run(
        folder,
        run,
        parties=parties,
        minimum=minimum,
        guardian=guardian,
        student=student,
        account=account,
        epsilon=epsilon,
        edition=edition,
        days=days,
    )
    console.print(
        f"{folder}: {len(terms.teachers)} teacher parties with {terms.total} teachers, a guardian and a student party. "
        f"They will ask {terms.asked} queries, by {terms.mechanism}, at ε ≤ {terms.epsilon:g} for a {terms.unit}.\n"
        f"Each teacher party needs its votes, {folder}/party-…/votes.npy, cast by teachers that were dealt by "
        f"{terms.unit}; or `own` in its party.yaml."
        if terms.fixed_point is None
        else f"{folder}: {len(terms.teachers)} parties that hold records, a guardian and a student party. They will "
        f"release {terms.numbers:,} sums, by {terms.mechanism}, at ε ≤ {terms.epsilon:g} for a {terms.unit}.\n"
        "Each party that holds records needs `own` in its party.yaml.",
        soft_wrap=True,
    )


@party.command()
def teacher(config: ConfigOption) -> None:
    """Share this party's votes between guardian and student party."""
    _run(config, "teacher")


@party.command()
def guardian(config: ConfigOption) -> None:
    """Convene a session, add the noise, keep the ledger."""
    _run(config, "guardian")


@party.command()
def student(config: ConfigOption) -> None:
    """Learn the answers, and nothing else."""
    _run(config, "student")


@party.command()
def learn(config: ConfigOption) -> None:
    """Make the student of a student party's answers: sealed, with its public statement."""
    from tasks.parties.config import read_party
    from tasks.parties.learning import learn

    folder = learn(read_party(config, "student"))
    console.print(f"{folder}: a student, and beside it its privacy.json.", soft_wrap=True)


@party.command()
def trial(
    folder: Annotated[Path, typer.Argument(help="A trial that `terrine party init` made.")],
    limit: Annotated[float, typer.Option(help="Seconds after which everything is ended.")] = 1800.0,
) -> None:
    """Run all parties of a trial on this machine, each in a process of its own."""
    from flows.collaboration import collaborate

    outcome = collaborate(str(folder), limit)
    _show(outcome)


def _run(config: Path, role: Any) -> None:
    from tasks.parties.process import run_party, show_progress

    show_progress()
    _show(run_party(config, role))


def _show(outcome: dict[str, Any]) -> None:
    typer.echo(json.dumps(outcome.get("guardian") or outcome, indent=2, sort_keys=True))
