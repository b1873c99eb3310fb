"""`terrine export`: a student in the formats people deploy."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.table import Table

from flows.cli.options import FolderOption, ModelOption, ReferenceOption, RunOption, StatisticsName
from flows.printing import printer

console = printer()

# Enumerations, since typer has no lists of literals.
Statistics = StrEnum("Statistics", list(get_args(StatisticsName)))
FormatName = StrEnum("FormatName", ["onnx", "pt2"])


def export(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    run: RunOption = None,
    folder: FolderOption = None,
    model: ModelOption = None,
    statistics: Annotated[
        list[Statistics],
        typer.Option(help="Statistics of the exported networks; may be repeated. Default: those that are served."),
    ] = [],  # noqa: B006  # typer copies it
    format_: Annotated[list[FormatName], typer.Option("--format", help="May be repeated.")] = list(FormatName),  # noqa: B006
    reference: ReferenceOption = None,
) -> None:
    """Write the student as ONNX and as PyTorch's exported program, compared with it, with digests and statement."""
    from tasks.serving.export import export_folder
    from tasks.serving.guarantee import OWN_STATISTICS
    from tasks.serving.student_source import student_folder

    with console.status("exporting") as status:
        exported = export_folder(
            student_folder(run, folder, model),
            out,
            [name.value for name in statistics],
            [name.value for name in format_],
            reference=reference,
            progress=lambda text: status.update(f"exporting: {text}"),
        )
    table = Table("file", "statistics", "largest difference", title=str(out), box=None, pad_edge=False)
    for item in exported:
        table.add_row(item.file, item.statistics, f"{item.difference:.1e}")
    console.print(table)
    if reference is not None:
        console.print(OWN_STATISTICS, style="yellow", soft_wrap=True)
