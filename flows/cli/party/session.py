"""`terrine party teacher`, `guardian` and `student`: one party's part in a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

ConfigOption = Annotated[Path, typer.Option("--config", help="The party's party.yaml.")]


def register(party: typer.Typer) -> None:
    """Add `teacher`, `guardian` and `student` to `terrine party`."""
    party.command()(teacher)
    party.command()(guardian)
    party.command()(student)


def teacher(config: ConfigOption) -> None:
    """Share this party's votes between guardian and student party."""
    _run(config, "teacher")


def guardian(config: ConfigOption) -> None:
    """Convene a session, add the noise, keep the ledger."""
    _run(config, "guardian")


def student(config: ConfigOption) -> None:
    """Learn the answers, and nothing else."""
    _run(config, "student")


def _run(config: Path, role: Any) -> None:
    from tasks.parties.process import run_party, show_progress

    show_progress()
    show(run_party(config, role))


def show(outcome: dict[str, Any]) -> None:
    """Print what came out of a session."""
    typer.echo(json.dumps(outcome.get("guardian") or outcome, indent=2, sort_keys=True))
