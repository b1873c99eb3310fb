"""`terrine party learn`: the student of a student party's answers."""

from __future__ import annotations

import typer

from flows.cli.party.session import ConfigOption
from flows.printing import printer

console = printer()


def register(party: typer.Typer) -> None:
    """Add `learn` to `terrine party`."""
    party.command()(learn)


def learn(config: ConfigOption) -> None:
    """Make the student of a student party's answers: sealed, with its public statement."""
    from tasks.parties.config import read_party
    from tasks.parties.learning import learn

    folder = learn(read_party(config, "student"))
    console.print(f"{folder}: a student, and beside it its privacy.json.", soft_wrap=True)
