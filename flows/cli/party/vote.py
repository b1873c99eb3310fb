"""`terrine party vote`: one party's part in a session, whatever its role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.options import JsonOption
from flows.printing import printer
from terrine.errors import some

if TYPE_CHECKING:
    from tasks.parties.agreement.terms import Terms

console = printer(soft_wrap=True)

ConfigOption = Annotated[Path, typer.Option("--config", help="The party's party.yaml.")]


def vote(
    config: ConfigOption,
    stay: Annotated[
        bool, typer.Option(help="guardian: stay for parties that were late, for `patience`, to tell them so.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Take part in the session, in the role that party.yaml names: share votes, add the noise, or learn the answers.

    It waits for as long as party.yaml says (`deadline`, `patience`), connects again whenever a connection breaks, and
    says who is there and who is missing. Started again at any moment, it goes on.
    """
    from tasks.parties.config import read_party
    from tasks.parties.process import run_party, show_progress
    from tasks.parties.standing import standing

    show_progress()
    outcome = run_party(config, stay=stay)
    if as_json:
        show(outcome)
        return
    for sentence in ended(outcome, read_party(config).terms):
        console.print(sentence)
    following = standing(config)["next"]
    console.print(f"Next: {following}" if following.startswith("terrine") else following)


def ended(outcome: dict[str, Any], terms: Terms) -> list[str]:
    """Return what a party knows of a session that is over: who was counted, what was released, and what it cost."""
    from terrine.privacy.accounting.gaussian import round_up

    record = outcome.get("guardian") or outcome
    said, counted = ["The session is over."], record.get("counted")
    if counted:
        left_out = [name for name in terms.teachers if name not in counted]
        late = f" Late, or left out: {some(left_out)}." if left_out else ""
        said.append(f"Counted: {', '.join(counted)}.{late}")
    if "epsilon_total" in record:
        answered = f"{record['answered']:,} of {record['asked']:,} queries are answered"
        made = answered if terms.votes else "Sums are opened"
        cost = f"ε = {record['epsilon']:g} at δ = {record['delta']:g}"
        limit = record["epsilon_account"]
        total = f"ε = {round_up(record['epsilon_total']):g}" + ("" if limit is None else f" of {limit:g}")
        again = " They were before, and nothing is charged now." if record["reused"] else ""
        come = "had come to {} by then" if record["reused"] else "came to {}"
        said.append(f"{made} for {cost}; all releases of the account {come.format(total)}.{again}")
    return said


def show(outcome: dict[str, Any]) -> None:
    """Print what came out of a session, as JSON."""
    typer.echo(json.dumps(outcome.get("guardian") or outcome, indent=2, sort_keys=True))
