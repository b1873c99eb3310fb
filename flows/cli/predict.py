"""`terrine predict`: what a student says about image files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from flows.cli.serve import DeviceOption, FolderOption, ModelOption, ReferenceOption, RunOption, StatisticsOption
from terrine.errors import SettingError

if TYPE_CHECKING:
    from tasks.serving.predict import Prediction


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(predict)


def predict(
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    run: RunOption = None,
    folder: FolderOption = None,
    model: ModelOption = None,
    statistics: StatisticsOption = None,
    reference: ReferenceOption = None,
    device: DeviceOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Say which class each image is of, and how likely that is; each by itself, unless under --statistics current."""
    from tasks.serving.predict import open_student, predict_files
    from tasks.serving.student_source import student_folder

    if as_json and as_csv:
        raise SettingError("--json and --csv are two formats: give one.")
    source = student_folder(run, folder, model)
    student = open_student(source, statistics, reference, device)
    predictions = predict_files(student, images)
    if as_json:
        typer.echo(json.dumps([_values(prediction) for prediction in predictions], indent=2, ensure_ascii=False))
    elif as_csv:
        typer.echo(_csv(predictions, student.class_names), nl=False)
    else:
        table = Table(Column("image", overflow="fold"), "class", "probability", box=None, pad_edge=False)
        for prediction in predictions:
            table.add_row(str(prediction.file), prediction.label, f"{100 * prediction.probability:.1f} %")
        Console().print(table)


def _values(prediction: Prediction) -> dict[str, object]:
    return {
        "image": str(prediction.file),
        "class": prediction.label,
        "probability": prediction.probability,
        "probabilities": prediction.probabilities,
    }


def _csv(predictions: list[Prediction], names: list[str]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["image", "class", "probability", *(f"probability of {name}" for name in names)])
    for prediction in predictions:
        values = [f"{prediction.probabilities[name]:.6f}" for name in names]
        writer.writerow([str(prediction.file), prediction.label, f"{prediction.probability:.6f}", *values])
    return stream.getvalue()
