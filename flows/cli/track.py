"""`terrine track`: log a complete run to MLflow, where that failed when it was made."""

from __future__ import annotations

from typing import Annotated

import typer


def track(
    run: Annotated[str | None, typer.Argument(help="A complete run; default: the one selected last.")] = None,
) -> None:
    """Log a complete run to MLflow, where that failed when it was made; nothing else is done."""
    from tasks.runtime.graph import load
    from tasks.runtime.locks import making
    from tasks.runtime.run import chosen_run
    from tasks.transcription.graph import pipeline_of
    from terrine.errors import ArtefactError

    made = chosen_run(run)
    if not made.folders.report.is_file():
        raise ArtefactError(f"Run {made.name} is not complete. Make it first: terrine run --preset {made.name}")
    _, log_run = pipeline_of(made.params)["report"].tasks.split()
    with making(made.root, made.name):
        identity = load(log_run).fn(made)
    if identity is None:
        raise typer.Exit(1)
    print(f"MLflow run {identity} (make ui)")
