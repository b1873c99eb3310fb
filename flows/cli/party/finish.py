"""`terrine party finish`: what comes after the session, at the student party and at each teacher party."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.party.vote import ConfigOption
from flows.printing import printer
from flows.stopping import stoppable

console = printer()


def register(party: typer.Typer) -> None:
    """Add `finish` to `terrine party`."""
    party.command()(stoppable()(finish))


def finish(
    config: ConfigOption,
    student: Annotated[
        Path | None, typer.Option(help="teacher: student.zip from the student party, or a folder with the same in it.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="teacher: release one accuracy with noise at this price, charged to the party's own ledger."),
    ] = None,
    accuracy: Annotated[
        list[Path] | None,
        typer.Option(help="student: accuracy.json that a party has released; may be repeated: their mean is taken."),
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Export the student into this folder as well (ONNX).")] = None,
) -> None:
    """Student party: make the student of the answers, log it, and write the file for the others. Teacher party: see how
    well that student does on its own test split; the figure stays there."""
    from tasks.parties.config import read_party
    from tasks.parties.finishing import finish_student, finish_teacher
    from tasks.parties.process import show_progress
    from tasks.reports.accuracy import shown_accuracy
    from terrine.errors import SettingError

    show_progress()
    party = read_party(config)
    if party.role == "guardian":
        raise SettingError("A guardian has nothing to finish: its ledger says what was charged (terrine party status).")
    if party.role == "student":
        if student is not None or epsilon is not None:
            raise SettingError("--student and --epsilon are for teacher parties: this one makes the student.")
        done = finish_student(party, accuracy or [], export)
        console.print(f"{done.folder}: the student, and beside it its privacy.json.", soft_wrap=True)
        console.print(f"{done.archive}: the same in one file, public. Send it to every party.", soft_wrap=True)
    else:
        if student is None or accuracy:
            raise SettingError("--student names what the student party handed on, student.zip; --accuracy is for that.")
        done = finish_teacher(party, student, epsilon, export)
        served = "" if done.served is None else f", and in {100 * done.served:.1f} % one image at a time"
        console.print(
            f"PRIVATE, on {done.images:,} test records of this party: the student is right in "
            f"{100 * (done.accuracy or 0):.1f} % of cases in batches{served}. Do not publish.",
            soft_wrap=True,
        )
        if done.released is not None:
            place = done.folder.parent / "accuracy.json"
            console.print(f"{place}: with noise, charged; send it to the student party.", soft_wrap=True)
    if done.released is not None:
        shown = shown_accuracy(done.released["accuracy"], done.released["plus_minus"])
        console.print(f"Accuracy that may be published: {shown}", soft_wrap=True)
    if export is not None:
        console.print(f"{export}: the student as ONNX, with its statement.", soft_wrap=True)
