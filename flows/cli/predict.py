"""`terrine predict`: what a student says about image files, or about the rows of a table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from flows.cli.options import (
    CsvOption,
    DeviceOption,
    FolderOption,
    JsonOption,
    ModelOption,
    ReferenceOption,
    RunOption,
    StatisticsOption,
    refuse_two_formats,
)
from flows.printing import printer

if TYPE_CHECKING:
    from tasks.serving.predict import Prediction
    from tasks.serving.rows import RowPredictions
    from terrine.deployment.model import StudentModel


def predict(
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them; for a table, CSV files.")],
    run: RunOption = None,
    folder: FolderOption = None,
    model: ModelOption = None,
    statistics: StatisticsOption = None,
    reference: ReferenceOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Say which class each image is of, or each row of a table, and how likely that is; of several findings each; of
    classes that have an order the number, too.

    A file that cannot be read is named, and the others are answered; the exit status is then 1. Each is answered by
    itself, unless under --statistics current. A table has the columns that the student learned from, in any order.
    """
    from tasks.reports.accuracy import gap_of
    from tasks.serving.predict import open_student, predict_files
    from tasks.serving.rows import predict_tables, refuse_image_options
    from tasks.serving.student_source import student_folder
    from terrine.deployment.rows import takes_table

    refuse_two_formats(as_json, as_csv)
    source = student_folder(run, folder, model)
    if takes_table(source):
        refuse_image_options(statistics, reference)
        _print_rows(predict_tables(source, images, device), as_json, as_csv)
        return
    student = open_student(source, statistics, reference, device)
    failed: dict[Path, str] = {}
    predictions = predict_files(student, images, failed)
    gap = gap_of(source) if statistics is None and reference is None else None
    for note in filter(None, [gap and f"Warning: {gap}", student.note]):
        printer(stderr=True).print(note, style="yellow", soft_wrap=True)
    _print_images(predictions, student, as_json, as_csv)
    for file, reason in failed.items():
        printer(stderr=True).print(Text(f"Not answered: {file} {reason}.", style="red"), soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _print_images(predictions: list[Prediction], student: StudentModel, as_json: bool, as_csv: bool) -> None:
    """Print the answers for image files."""
    if as_json:
        typer.echo(
            json.dumps(
                [_values(prediction, student.findings) for prediction in predictions], indent=2, ensure_ascii=False
            )
        )
    elif as_csv:
        typer.echo(_csv(predictions, student.class_names, student.findings, student.scale is not None), nl=False)
    elif student.findings:
        table = Table(Column("image", overflow="fold"), "finding", "score", box=None, pad_edge=False)
        for prediction in predictions:
            shown = str(prediction.file)
            for name, score in sorted(prediction.probabilities.items(), key=lambda pair: -pair[1]):
                table.add_row(shown, name, f"{100 * score:.1f} %")
                shown = ""
        printer().print(table)
    else:
        scale = student.scale
        middle = ["class"] if scale is None else ["number", "bin"] if scale.edges else ["grade", "mean grade"]
        table = Table(Column("image", overflow="fold"), *middle, "probability", box=None, pad_edge=False)
        for prediction in predictions:
            said = [prediction.label] if scale is None else [prediction.label, f"{prediction.number:.4g}"]
            said = said[::-1] if middle[0] == "number" else said
            table.add_row(str(prediction.file), *said, f"{100 * prediction.probability:.1f} %")
        printer().print(table)


def _print_rows(files: list[RowPredictions], as_json: bool, as_csv: bool) -> None:
    """Print the answers for rows of tables: by file where there are several, and by the line of a row."""
    import pandas as pd

    for file in files:
        for note in file.notes:
            printer(stderr=True).print(f"{file.file}: {note}", style="yellow")
    found = pd.concat([file.answers.reset_index().assign(file=str(file.file)) for file in files])
    found.insert(0, "file", found.pop("file"))
    if len(files) == 1:
        found = found.drop(columns="file")
    if as_json:
        typer.echo(json.dumps(found.to_dict("records"), indent=2, ensure_ascii=False))
    elif as_csv:
        typer.echo(found.to_csv(index=False, float_format="%.6f"), nl=False)
    else:
        shown = [name for name in found if not name.startswith("probability of ")]
        table = Table(*(Column(name, overflow="fold") for name in shown), box=None, pad_edge=False)
        for values in found[shown].assign(probability=[f"{100 * p:.1f} %" for p in found["probability"]]).to_numpy():
            table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
        printer().print(table)


def _values(prediction: Prediction, findings: bool) -> dict[str, object]:
    if findings:
        return {"image": str(prediction.file), "findings": prediction.probabilities}
    return {
        "image": str(prediction.file),
        "class": prediction.label,
        **({} if prediction.number is None else {"number": prediction.number}),
        "probability": prediction.probability,
        "probabilities": prediction.probabilities,
    }


def _csv(predictions: list[Prediction], names: list[str], findings: bool, ordered: bool) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    likeliest = [] if findings else [*(["number"] if ordered else []), "class", "probability"]
    writer.writerow(["image", *likeliest, *(f"probability of {name}" for name in names)])
    for prediction in predictions:
        values = [f"{prediction.probabilities[name]:.6f}" for name in names]
        said = [] if findings else [prediction.label, f"{prediction.probability:.6f}"]
        if ordered:
            said.insert(0, f"{prediction.number:.6g}")
        writer.writerow([str(prediction.file), *said, *values])
    return stream.getvalue()
