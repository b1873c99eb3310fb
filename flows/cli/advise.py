"""`terrine advise`: which mechanism to take, from numbers that anybody may know."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from flows.printing import printer


def advise(
    units: Annotated[int, typer.Option(min=1, help="About how many records, or groups, there are.")],
    classes: Annotated[int, typer.Option(min=2, help="How many classes.")],
    epsilon: Annotated[float, typer.Option(help="The run's budget.")],
    delta: Annotated[float, typer.Option(help="Its δ.")] = 1e-5,
    group: Annotated[bool, typer.Option("--group", help="Protect groups (privacy.unit=group), not records.")] = False,
    features: Annotated[int, typer.Option(min=1, help="Features that a linear head reads.")] = 200,
    apart: Annotated[bool, typer.Option("--apart", help="Nothing about records may be added up.")] = False,
    one_round: Annotated[bool, typer.Option("--one-round", help="Who holds the records can answer only once.")] = False,
    not_linear: Annotated[bool, typer.Option("--not-linear", help="A linear head on fixed features won't do.")] = False,
) -> None:
    """Say which mechanism to take, how many teachers and how much noise; nothing is read and nothing is charged."""
    from terrine.advice import advise as advice_for

    found = advice_for(
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
    console = printer()
    console.print(f"aggregation.mechanism={found.mechanism}", style="bold")
    if found.mechanism == "histogram":
        votes = found.votes
        console.print(
            f"{votes.teachers:,} teachers, {votes.queries:,} queries, noise of {votes.sigma:.1f} votes on every count "
            "(what auto chooses)"
        )
    console.print(found.reason)
    if not found.useful:
        console.print(
            Text.assemble(
                ("That is too little:", "red"),
                f" a student would learn little but noise. ε = {found.epsilon:g} would do.",
            )
        )
        raise typer.Exit(1)
