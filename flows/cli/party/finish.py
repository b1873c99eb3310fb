"""`terrine party finish`: what comes after the session, at the student party and at each teacher party."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.party.vote import ConfigOption
from flows.printing import printer

console = printer(soft_wrap=True)


def finish(
    config: ConfigOption,
    student: Annotated[
        Path | None,
        typer.Option(help="teacher, guardian: student.zip from the student party, or a folder with the same in it."),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Meet all others, who say the same, and release one accuracy of all of you at this price."),
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Export the student into this folder as well (ONNX).")] = None,
    sign: Annotated[
        bool,
        typer.Option("--sign", help="student: write the pages for ethics boards, too, and sign all of it with a key."),
    ] = False,
) -> None:
    """Student party: make the student of the answers, log it, and write the file for the others. Teacher party: see how
    well that student does on its own test split; the figure stays there. With --epsilon every party, the guardian too,
    meets the others once more: what all parties' figures come to is released, with noise."""
    from tasks.parties.config import read_party
    from tasks.parties.finishing import PUBLIC, finish_guardian, finish_student, finish_teacher
    from tasks.parties.process import show_progress
    from tasks.reports.accuracy import shown_accuracy
    from terrine.errors import SettingError

    show_progress()
    party = read_party(config)
    if party.role == "student":
        if student is not None:
            raise SettingError("--student is for the other parties: this one makes the student.")
        done = finish_student(party, epsilon, export, sign=sign)
        console.print(f"{done.folder}: the student, and beside it its privacy.json.")
        console.print(f"{done.archive}: the same in one file, public. Send it to every party.")
        if done.key is not None:
            console.print(
                f"Signed with this party's key {done.key}. Hand its public half over on another way, for terrine "
                f"verify --key: {done.archive.with_name(PUBLIC)}"
            )
    elif sign:
        raise SettingError("--sign is for the student party, which answers for the student.")
    elif party.role == "guardian" and (epsilon is None or export is not None):
        raise SettingError(
            "A guardian has nothing to finish but an accuracy of all parties (--student, --epsilon): its ledger says "
            "what was charged (terrine party status)."
        )
    elif student is None:
        raise SettingError("--student names what the student party handed on, student.zip.")
    elif party.role == "guardian":
        done = finish_guardian(party, student, epsilon)
        console.print(f"One accuracy was released, for ε={done.charged:g} on top of the answers.")
    else:
        done = finish_teacher(party, student, epsilon, export)
        batches = "" if done.in_batches is None else f"; in batches in {100 * done.in_batches:.1f} %"
        console.print(
            f"PRIVATE, on {done.images:,} test records of this party: the student is right in "
            f"{100 * (done.accuracy or 0):.1f} % of cases as served{batches}. Do not publish.",
        )
    if done.released is not None:
        shown = shown_accuracy(done.released["accuracy"], done.released["plus_minus"])
        console.print(f"Accuracy of all parties, which may be published: {shown}")
    if export is not None:
        console.print(f"{export}: the student as ONNX, with its statement.")
