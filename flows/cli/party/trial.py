"""`terrine party init` and `trial`: a trial of all parties on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.party.propose import named
from flows.cli.party.vote import show
from flows.printing import printer

console = printer()


def init(
    folder: Annotated[Path, typer.Argument(help="Where the trial is made; it must not exist.")],
    preset: Annotated[
        str | None, typer.Option(help="Queries, teachers, mechanism and budget are its; default: params.yaml's run.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, laid over the preset.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="Names of the classes by label: a,b,c. Default: those of a public benchmark.")
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
    """Make a trial: a proposal, an authority, and a folder for every party with its credentials and configuration."""
    from tasks.parties.init import init

    terms = init(
        folder,
        preset,
        list(set_ or []),
        class_names=named(classes),
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
        + (
            f"Each teacher party needs its votes, {folder}/party-…/votes.npy, cast by teachers that were dealt by "
            f"{terms.unit}; or `own` in its party.yaml."
            if terms.averages is None
            else f"Each teacher party needs its records, {folder}/party-…/data: its teachers learn in the session."
        )
        if terms.votes
        else f"{folder}: {len(terms.teachers)} parties that hold records, a guardian and a student party. They will "
        f"release {terms.numbers:,} sums, by {terms.mechanism}, at ε ≤ {terms.epsilon:g} for a {terms.unit}.\n"
        "Each party that holds records needs `own` in its party.yaml.",
        soft_wrap=True,
    )


def trial(
    folder: Annotated[Path, typer.Argument(help="A trial that `terrine party init` made.")],
    limit: Annotated[float, typer.Option(help="Seconds after which everything is ended.")] = 1800.0,
) -> None:
    """Run all parties of a trial on this machine, each in a process of its own."""
    from flows.collaboration import collaborate

    outcome = collaborate(str(folder), limit)
    show(outcome)
