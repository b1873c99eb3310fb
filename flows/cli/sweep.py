"""`terrine sweep`: try several settings, charged as they are made."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def sweep(
    vary: Annotated[list[str], typer.Option(help="Values to try: section.key=value,value. May be repeated.")],
    preset: Annotated[str | None, typer.Option(help="What to start from; default: the run selected last.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a parameter in all candidates.")] = None,
    select: Annotated[
        Literal["none", "evaluation", "released"],
        typer.Option(
            help="Name the best by test accuracy (evaluation; public benchmark data only), by accuracies with noise "
            "(released; see evaluation.epsilon), or none."
        ),
    ] = "none",
    workers: Annotated[int, typer.Option(min=1, help="Number of candidates that are made at the same time.")] = 1,
) -> None:
    """Make a run of every combination of values, and show ε of each and of the search; finished runs are kept.

    The budget of the dataset must cover the worst case of all of them before the first is made. The selected run stays
    selected.
    """
    from flows.sweep import sweep as run_sweep

    run_sweep(vary, preset, set_, select, workers)
