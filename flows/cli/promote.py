"""`terrine promote`: make a run's student the one that MLflow's users are to take."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.printing import printer


def promote(
    run: Annotated[str | None, typer.Argument(help="A complete run; default: the one selected last.")] = None,
) -> None:
    """Make a run's student `champion` in MLflow's registry: if it is private, signed, verified, and in the ledger."""
    from tasks.runtime.locks import making
    from tasks.runtime.run import chosen_run
    from tasks.tools.promotion import CHAMPION, promote

    made = chosen_run(run)
    with making(made.root, made.name):
        done = promote(made)
    before = "" if done.before in (None, done.version) else f" (before: version {done.before})"
    console = printer(soft_wrap=True)
    console.print(f"Accuracy as served (private test split): {100 * done.accuracy:.2f} %")
    if done.warning is not None:
        console.print(f"Warning: {done.warning}", style="yellow")
    console.print(f"Version {done.version} of {made.name} is the {CHAMPION}{before}: models:/{made.name}@{CHAMPION}")
