"""`terrine doctor`: what is installed here, what it runs on, and what is missing."""

from __future__ import annotations

import typer
from rich.table import Table

from flows.printing import printer


def doctor() -> None:
    """Print versions, devices and the project; exit with status 1 where something is missing."""
    from tasks.tools.installation import installed

    there, missing = installed()
    table, console = Table(box=None, show_header=False, pad_edge=False), printer()
    for row in there.items():
        table.add_row(*row)
    console.print(table)
    for sentence in missing:
        console.print(f"Missing: {sentence}.", style="red", soft_wrap=True)
    if missing:
        raise typer.Exit(1)
    console.print("Nothing is missing.", style="green")
