"""`terrine airlock`: write the kit that a release needs to leave a secure environment."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import RunArgument, RunOption, chosen_name
from flows.printing import printer


def airlock(
    name: RunArgument = None,
    run: RunOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write. Default: RUN-kit in the current folder.")
    ] = None,
) -> None:
    """Write a folder and a zip file with a signed release and all that an output checker needs.

    Recipients verify it with the enclosed verify.py or verify.html, without Terrine.
    """
    from tasks.desk.airlock import build_kit
    from tasks.runtime.locks import making
    from tasks.runtime.run import chosen_run

    made, console = chosen_run(chosen_name(name, run)), printer(soft_wrap=True)
    with making(made.root, made.name):
        kit = build_kit(made, out or Path(f"{made.name}-kit"))
    console.print(f"Written: {kit.folder} and {kit.archive}, signed with the site's key {kit.key}.")
    if kit.inside is not None:
        console.print(f"Only for the output checker inside, not in the kit: results of attacks in {kit.inside}.")
