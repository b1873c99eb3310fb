"""The command line: `terrine`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from flows.cli import accounting, airlock, approve, audit, check, compare, images, ledger, party, release, run, student
from flows.environment import prepare_environment
from flows.printing import LoggedError, printer
from flows.stopping import stoppable
from terrine.errors import TerrineError


class Commands(TyperGroup):
    """Group of commands with one-word or two-word names, such as `statement import`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command's name, the command, and the remaining words."""
        two = " ".join(args[:2])
        return (two, self.commands[two], args[2:]) if two in self.commands else super().resolve_command(ctx, args)


app = typer.Typer(
    name="terrine",
    cls=Commands,
    help="Train a model on private images or tables and publish it with a differential-privacy guarantee.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Projects and runs": (
        *(run.init, check.check, stoppable()(run.run), stoppable()(run.sweep)),
        *(run.presets, run.params, compare.compare),
    ),
    "Privacy": (
        ledger.ledger,
        accounting.account,
        stoppable()(release.statement),
        release.verify,
        audit.audit,
        airlock.airlock,
    ),
    "Student": (student.predict, student.serve, student.export),
    "Images": (images.images,),
}
"""Commands by topic, in the order of `terrine --help`."""

for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(approve.release, name="release", rich_help_panel="Privacy")
app.add_typer(party.party, rich_help_panel="Collaboration")
app.command("statement import", rich_help_panel="Privacy")(release.import_statement)
app.command(hidden=True)(stoppable()(run.stage))


def main(command: Callable[[], object] | None = None) -> None:
    """Run the command line. Errors are printed in red, without a traceback."""
    prepare_environment()
    if isinstance(sys.stdout, TextIOWrapper):  # the terminal's encoding may lack characters of names
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        (command or app)()
    except (TerrineError, LoggedError) as error:
        console = printer(stderr=True)
        console.print(Text(f"Error: {error}", style="red"), soft_wrap=True)
        for note in getattr(error, "__notes__", []):
            console.print(Text(note), soft_wrap=True)
        sys.exit(getattr(error, "status", 1))
