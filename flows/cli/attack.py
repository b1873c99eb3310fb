"""What the commands that attack a run share: a bar, and exit code 1 where something was caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import typer

Found = dict[str, Any]


def with_bar(what: str, attack: Callable[[Callable[[float, str], None]], Found]) -> Found:
    """Return what an attack finds; it is handed a function that shows (share done, what is next): in a bar, or, where
    nobody sits before it, in a line now and then. Stages of shadow runs print none of their own."""
    from rich.progress import Progress

    from flows.printing import printer
    from tasks.runtime.progress import CURRENT, lines

    console = printer(stderr=True)
    if not console.is_terminal:
        with CURRENT.within_more():
            return attack(lines(what, console.print))
    with CURRENT.within_more(), Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        return attack(lambda share, text: bar.update(task, completed=share, description=text))


def conclude(result: Found, as_json: bool, show: Callable[[Found], None]) -> None:
    """Print what was found; end with exit code 1 when it is more than is charged."""
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        show(result)
    if result["caught"]:
        raise typer.Exit(1)
