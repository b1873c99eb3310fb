"""`terrine audit --neighbours N`: exchange units of a run's own data or leave them out, and see who moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.cli.attack import conclude, with_bar

if TYPE_CHECKING:
    from tasks.runtime.run import Run


def exchange_units(run: str | None, count: int, as_json: bool) -> None:
    """Try `count` units of a run (None: the one selected last); exit code 1 when one of them moves two teachers."""
    from tasks.runtime.run import chosen_run
    from tasks.tools.neighbours import audit_neighbours

    subject = chosen_run(run)
    conclude(with_bar("neighbours", lambda tell: audit_neighbours(subject, vote_again, count, tell)), as_json, _show)


def vote_again(scratch: Run) -> None:
    """Take a run from its dataset to its votes; averages that were released are there already."""
    from flows.stages import run_through

    run_through(scratch, "partition", "partition")
    if not scratch.params.teachers.releases_averages:
        run_through(scratch, "average", "average")
    run_through(scratch, "teach", "vote")


def _show(result: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from flows.printing import printer

    console = printer()
    unit, most = result["unit"], result["most"]
    console.print(f"{result['run']}: {result['tried']} of {result['units']:,} units tried ({unit})\n")
    table = Table(f"{unit} and what was done", "teachers that moved", "votes that changed", box=None, pad_edge=False)
    for entry in result["steps"]:
        moved = f"{entry['teachers']} of {result['voters']}"
        table.add_row(f"{entry['unit']} {entry['step']}", moved, f"{entry['votes']:,} of {result['votes']:,}")
    console.print(table)
    if result["caught"]:
        console.print(
            Text.assemble(
                (f"\nOne {unit} moved {most} teachers.", "bold red"),
                " The guarantee counts one: what a release of this run is charged does not hold. Publish nothing of it "
                "before the cause is found.",
            )
        )
    else:
        console.print("\nNo unit moved more than one teacher; that proves nothing about the others.")
