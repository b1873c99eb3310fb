"""`terrine party propose`: terms and all that is public, to be mailed to every party."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flows.printing import printer
from terrine.spans import seconds

console = printer(soft_wrap=True)


def propose(
    folder: Annotated[
        Path, typer.Argument(help="Where the proposal is written; it must not exist. Its name is the collaboration's.")
    ],
    preset: Annotated[str, typer.Option(help="A preset: its queries, backbone, teachers, mechanism and budget.")],
    teacher: Annotated[list[str], typer.Option(help="NAME=TEACHERS of a teacher party. Once for each.")],
    guardian: Annotated[str, typer.Option(help="NAME@host:port of the guardian.")],
    student: Annotated[str, typer.Option(help="NAME@host:port of the student party.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, laid over the preset.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="Names of the classes by label: a,b,c. Default: those of a public benchmark.")
    ] = None,
    minimum: Annotated[int | None, typer.Option(help="Fewest teachers that must be there; default: all.")] = None,
    overlap: Annotated[int, typer.Option(help="At how many parties the data of one person may be.")] = 1,
    records: Annotated[
        int | None,
        typer.Option(
            help="The most records of a party for each of its TEACHERS, a public bound: with it, a mechanism that is "
            "auto sums records, where it may."
        ),
    ] = None,
    deadline: Annotated[
        str, typer.Option(help="How long the guardian waits for teacher parties: 90s, 15min, 6h, 14d.")
    ] = "14d",
    edition: Annotated[
        str | None, typer.Option(help="Names this vote; another one asks again, at new cost. Default: a digest.")
    ] = None,
    archive: Annotated[bool, typer.Option("--archive", help="Pack it into one file as well, FOLDER.zip.")] = False,
) -> None:
    """Propose a collaboration: from a preset and public inputs alone, nobody's records are read."""
    from tasks.parties.agreement.proposal import archive as pack
    from tasks.parties.agreement.propose import Wish, propose
    from tasks.parties.agreement.terms_page import page

    try:
        waits = seconds(deadline)
    except ValueError as error:
        raise typer.BadParameter(f"--deadline {error}.") from error
    wish = Wish(
        _teachers(teacher),
        _place("guardian", guardian),
        _place("student", student),
        class_names=named(classes),
        minimum=minimum,
        edition=edition,
        deadline=waits,
        overlap=overlap,
        records=records,
        name=folder.resolve().name[:100],
    )
    proposal, outlook = propose(folder, preset, list(set_ or []), wish)
    console.print(page(proposal.terms, proposal.addresses, proposal.shown))
    console.print("\nWhat a student may hope for")
    for sentence in outlook.notes:
        console.print(f"  {sentence}")
    if outlook.doubt:
        console.print(f"  Doubtful: {outlook.doubt}")
    mailed = pack(folder) if archive else folder
    console.print(
        f"\nMail {mailed} to every party, and tell each its digest by another way: {proposal.shown}.\n"
        f"Each then runs: terrine party accept {mailed.name} --as NAME --expect {proposal.shown}"
    )


def _teachers(given: Sequence[str]) -> dict[str, int]:
    teachers: dict[str, int] = {}
    for one in given:
        name, _, count = one.partition("=")
        if not count.isdigit() or name in teachers:
            raise typer.BadParameter(f"--teacher {one}: write NAME=TEACHERS, each name once: --teacher north=60.")
        teachers[name] = int(count)
    return teachers


def _place(option: str, given: str) -> tuple[str, str]:
    name, at, address = given.partition("@")
    if not at:
        raise typer.BadParameter(
            f"--{option} {given}: write NAME@host:port: --{option} trust@guardian.example.org:7801."
        )
    return name, address


def named(classes: str | None) -> list[str] | None:
    """Return the names that `--classes` lists."""
    return None if classes is None else [name.strip() for name in classes.split(",")]
