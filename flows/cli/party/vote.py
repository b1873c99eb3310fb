"""`terrine party vote`: one party's part in a session, whatever its role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

ConfigOption = Annotated[Path, typer.Option("--config", help="The party's party.yaml.")]


def vote(
    config: ConfigOption,
    stay: Annotated[
        bool, typer.Option(help="guardian: stay for parties that were late, for `patience`, to tell them so.")
    ] = True,
) -> None:
    """Take part in the session, in the role that party.yaml names: share votes, add the noise, or learn the answers.

    It waits for as long as party.yaml says (`deadline`, `patience`), connects again whenever a connection breaks, and
    says who is there and who is missing. Started again at any moment, it goes on.
    """
    from tasks.parties.process import run_party, show_progress

    show_progress()
    show(run_party(config, stay=stay))


def show(outcome: dict[str, Any]) -> None:
    """Print what came out of a session."""
    typer.echo(json.dumps(outcome.get("guardian") or outcome, indent=2, sort_keys=True))
