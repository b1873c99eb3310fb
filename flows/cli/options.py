"""Options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from terrine.errors import SettingError

StatisticsName = Literal["released", "current", "single", "frozen", "original"]
PresetOption = Annotated[
    str | None, typer.Option("--preset", help="A preset or a run of `terrine presets`; default: the run selected last.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a parameter: section.key=value. May be repeated.")
]
RunOption = Annotated[str | None, typer.Option("--run", help="A run of this project; default: the one selected last.")]
FolderOption = Annotated[Path | None, typer.Option("--folder", help="A student's folder, or an export that holds it.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="An MLflow model: models:/NAME/VERSION.")]
StatisticsOption = Annotated[
    StatisticsName | None,
    typer.Option(
        help="Statistics that images are normalised with. By default a prediction depends on its image only; with "
        "current it depends on all images of the request (docs/serving.md)."
    ),
]
ReferenceOption = Annotated[
    Path | None,
    typer.Option(help="A folder of your own unlabelled images that replace the synthetic reference images."),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


def refuse_two_formats(as_json: bool, as_csv: bool) -> None:
    """Raise SettingError if output is requested in two formats."""
    if as_json and as_csv:
        raise SettingError("--json and --csv exclude each other: give one.")
