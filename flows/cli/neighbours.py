"""`terrine audit --neighbours N`: exchange units of a run's own data or leave them out, and see what moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.cli.attack import conclude, with_bar

if TYPE_CHECKING:
    from tasks.runtime.run import Run


def exchange_units(run: str | None, count: int, as_json: bool) -> None:
    """Try `count` units of a run (None: the one selected last); exit code 1 when one moves too much."""
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
    votes = "voters" in result
    columns = ("teachers that moved", "votes that changed") if votes else ("sums moved, of what is charged",)
    table = Table(f"{unit} and what was done", *columns, box=None, pad_edge=False)
    for entry in result["steps"]:
        moved = (
            (f"{entry['teachers']} of {result['voters']}", f"{entry['votes']:,} of {result['votes']:,}")
            if votes
            else (f"{100 * entry['share']:.1f} %",)
        )
        table.add_row(f"{entry['unit']} {entry['step']}", *moved)
    console.print(table)
    if result["caught"]:
        most = f"{most} teachers" if votes else f"the sums {most:.2f} times as far as is charged for"
        console.print(
            Text.assemble(
                (f"\nOne {unit} moved {most}.", "bold red"),
                f"{' The guarantee counts one:' if votes else ''} What a release of this run is charged does not hold. "
                "Publish nothing of it before the cause is found.",
            )
        )
    else:
        most = "more than one teacher" if votes else "the sums by more than is charged"
        console.print(f"\nNo unit moved {most}; that proves nothing about the others.")
