"""`terrine init`: a project in a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.printing import printer


def init(folder: Annotated[Path, typer.Argument(help="A new folder; or a project, which gets what it lacks.")]) -> None:
    """Make a project in a folder of its own: parameters, presets, dvc.yaml, git and DVC."""
    from tasks.tools.project import begin

    new = begin(folder)
    console = printer()
    if not new:
        console.print(f"{folder} is a project, and lacks nothing.", soft_wrap=True)
    elif "params.yaml" in new:
        console.print(f"{folder} is a project now. Next: cd {folder} && terrine run", soft_wrap=True)
    else:
        console.print(f"{folder} was a project, and has new files: {', '.join(new)}.", soft_wrap=True)
