"""`terrine party again`: the next edition of a collaboration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.party.vote import ConfigOption
from flows.printing import printer

console = printer(soft_wrap=True)


def again(
    config: ConfigOption,
    edition: Annotated[str, typer.Option(help="Its name, the same at every party.")],
    queries: Annotated[
        Path | None, typer.Option(help="Folder of other query images, the same at every party. Default: as before.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Begin another edition of the same terms. What it costs and what remains is shown first; every party runs this.

    What this edition left (terms, outcome, answers, student) is kept in editions/ beside party.yaml. A party that has
    accepted a proposal signs the new terms, too.
    """
    from tasks.parties.agreement.acceptance import ACCEPTANCE
    from tasks.parties.agreement.editions import begin, look_ahead

    found = look_ahead(config, edition, queries)
    terms, account = found.terms, found.account
    what = f"{terms.asked:,} queries" if terms.votes else f"{terms.numbers:,} sums"
    console.print(
        f"Edition {edition!r}: {what} by {terms.mechanism}, at ε ≤ {terms.epsilon:g}, δ = {terms.delta:g} for a "
        f"{terms.unit}. It is another release, and costs again."
    )
    if account is None:
        console.print("The account is the guardian's, and this party has not heard what is left of it.")
    else:
        budget = "no budget" if account["budget"] is None else f"of ε = {account['budget']:g}"
        room = "" if account["left"] is None else f"; room for one more of ε = {account['left']:.4f}"
        console.print(f"The account: ε = {account['spent']:g} spent, {budget}{room}.")
    if not (yes or typer.confirm("Begin it here?")):
        raise typer.Exit(1)
    place = begin(config, found, queries)
    console.print(
        f"{place}: what the edition before left. Now: terrine party teach (where teachers are to be trained again), "
        "terrine party vote."
    )
    if (signed := config.with_name(ACCEPTANCE)).exists():
        console.print(f"These terms are signed: mail {signed} to the guardian, as you did before.")
