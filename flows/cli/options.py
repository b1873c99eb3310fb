"""Options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from terrine.errors import SettingError

StatisticsName = Literal["released", "current", "single", "frozen", "original"]
PresetOption = Annotated[
    str | None,
    typer.Option(
        "--preset", help="Preset or run to start from (see `terrine presets`). Default: the run selected last."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Setting to change: section.key=value (see `terrine params`). May be repeated."),
]
RunOption = Annotated[str | None, typer.Option("--run", help="Name of a run. Default: the run selected last.")]
RunArgument = Annotated[str | None, typer.Argument(metavar="RUN", help="Same as --run RUN.", show_default=False)]
"""Argument RUN, for commands that take no other argument."""
FolderOption = Annotated[Path | None, typer.Option("--folder", help="Folder of a student, or of an export.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="MLflow model: models:/NAME/VERSION.")]
StatisticsOption = Annotated[
    StatisticsName | None,
    typer.Option(
        help="Normalisation statistics. By default, a prediction depends only on its image; with current, on "
        "all images of the request (docs/serving.md)."
    ),
]
ReferenceOption = Annotated[
    Path | None,
    typer.Option(help="Folder of your own unlabelled images, used instead of the synthetic reference images."),
]
DeviceOption = Annotated[str, typer.Option(help="Torch device: auto, cpu, cuda, cuda:N or mps.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


def chosen_name(argument: str | None, option: str | None) -> str | None:
    """Return the run named by an argument or by --run, or None.

    Raises:
        SettingError: If the argument is a setting, or if it and --run name different runs.
    """
    if argument is not None and "=" in argument:
        raise SettingError(f"{argument} is not the name of a run. Did you mean --set {argument}?")
    if argument is not None and option is not None and argument != option:
        raise SettingError(f"{argument} and --run {option} name two runs: give one.")
    return option if argument is None else argument


def refuse_two_formats(as_json: bool, as_csv: bool) -> None:
    """Raise SettingError if output is requested in two formats."""
    if as_json and as_csv:
        raise SettingError("--json and --csv exclude each other: give one.")
