"""A table's student at work: predictions for CSV files, its MLflow model, its route over HTTP and its exports.

Whatever asks it gives the columns that the user's table has; how they are encoded is in the student's folder.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from fastapi import FastAPI, HTTPException, Request

from terrine.data.csv_file import read_csv_bytes, read_csv_file
from terrine.data.encoding import Encoding
from terrine.deployment.encoded_onnx import check_against_student, write_raw_columns
from terrine.deployment.export import Format, export_student
from terrine.deployment.network import ServingStatistics
from terrine.deployment.rows import TableStudent
from terrine.device import resolve_device
from terrine.errors import InputError, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARED = 16


@dataclass(frozen=True)
class RowPredictions:
    """The answers for the rows of one file, and sentences about what was left out of account.

    answers: indexed by the line a row starts in, with its id where the table has ids, a number where classes have an
    order, class and probabilities.
    """

    file: Path
    answers: pd.DataFrame
    notes: list[str]


def refuse_image_options(statistics: ServingStatistics | None, reference: Path | None) -> None:
    """Raise SettingError where a table's student is given what only a student of images has."""
    for name, value in (("--statistics", statistics), ("--reference", reference)):
        if value is not None:
            raise SettingError(f"{name} is about images, and this student takes rows of a table. Leave it out.")


def predict_tables(folder: Path, paths: Sequence[Path], device: str = "auto") -> list[RowPredictions]:
    """Return what the student in `folder` says about the rows of CSV files; the column of the target is not needed.

    Raises InputError for a file, a column or a cell that cannot be used, naming it.
    """
    student = TableStudent.load(folder, device=resolve_device(device))
    return list(_predicted(student, paths))


def _predicted(student: TableStudent, paths: Sequence[Path]) -> Iterator[RowPredictions]:
    for path in paths:
        if path.suffix.lower() != ".csv":
            raise InputError(f"{path} is no CSV file, and this student takes rows of a table. Give .csv files.")
        rows = read_csv_file(path)
        answers = student.answers(rows, str(path), "line")
        if student.id is not None and student.id in rows:
            name = student.id if student.id not in answers else f"id: {student.id}"
            answers.insert(0, name, rows[student.id])
        yield RowPredictions(path, answers, student.notes(rows))


def table_model(folder: Path) -> dict[str, Any]:
    """Return what MLflow is told about the student of a table: signature, input example, and facts about its columns.

    Every column has MLflow's type Any, and none is required: pandas reads one column as int64, float64 or objects, as
    its values happen to be, and MLflow refuses whole numbers where a double is declared, and a missing word where a
    string is.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import AnyType

    student = TableStudent.load(folder)
    example = student.encoding.example()
    answer = student.answers(example)
    outputs = [ColSpec(DataType.string if name == "class" else DataType.double, name) for name in answer]
    inputs = [ColSpec(AnyType(), column.name, required=False) for column in student.encoding.columns]
    return {
        "signature": ModelSignature(Schema(inputs), Schema(outputs)),
        "input_example": example,
        "metadata": {"class_names": student.class_names, "columns": student.about()},
    }


def add_rows(app: FastAPI, student: TableStudent) -> str:
    """Add POST /rows, which takes a CSV file, to the service of a table's student; return how it may be asked."""

    @app.post("/rows")
    async def rows(request: Request) -> dict[str, Any]:
        body = await request.body()

        def answer() -> dict[str, Any]:
            table = read_csv_bytes(body, "The body")
            answers = student.answers(table, "The body", "line")
            return {"predictions": answers.reset_index().to_dict("records"), "notes": student.notes(table)}

        try:
            return await asyncio.to_thread(answer)
        except InputError as error:
            raise HTTPException(400, str(error)) from error

    first = [f'"{column.name}": ...' for column in student.encoding.columns[:2]]
    more = ", ..." if len(student.encoding.columns) > len(first) else ""
    return f'Send {{"dataframe_records": [{{{", ".join(first)}{more}}}]}}, or a CSV file to /rows.'


def export_table(
    folder: Path, target: Path, formats: Sequence[Format], told: Mapping[str, str]
) -> tuple[list[tuple[str, ServingStatistics, Format, float]], dict[str, Any]]:
    """Write a table's student to `target`; return its files with their differences, and what they take.

    `student.onnx` takes the user's own columns; `student.pt2` takes encoded rows, float32 [batch, features], because a
    torch program takes no words. Both are compared with the student. told: what the ONNX file carries of the guarantee.
    """
    student = TableStudent.load(folder)
    rows = _compared_rows(student.encoding)
    encoded = student.encoding.apply(rows, "The compared rows", "row")
    names = json.dumps(student.class_names, ensure_ascii=False)
    scale = {} if student.student.scale is None else {"scale": json.dumps(student.student.scale.described())}
    metadata = {"class_names": names, "target": json.dumps(student.target, ensure_ascii=False), **scale, **told}
    exported: list[tuple[str, ServingStatistics, Format, float]] = []
    for suffix in dict.fromkeys(formats):
        path = target / f"student.{suffix}"
        (difference,) = export_student(student.student, [path], encoded)
        if suffix == "onnx":
            write_raw_columns(path, student.encoding, metadata)
            difference = check_against_student(path, student, rows)
        exported.append((path.name, "original", suffix, difference))
    columns = [
        {"name": column.name, "dtype": "float64" if column.values is None else "string", "shape": ["batch", 1]}
        for column in student.encoding.columns
    ]
    rows_of = {"name": "images", "dtype": "float32", "shape": ["batch", student.student.channels]}
    return exported, {"input": {"onnx": columns, "pt2": {**rows_of, "encoded as": "student/encoding.json says"}}}


def _compared_rows(encoding: Encoding) -> pd.DataFrame:
    """Return rows that between them hold every word, an unknown word, missing values, and numbers of all sizes."""
    words = [len(column.values) for column in encoding.columns if column.values is not None]
    count = max(_COMPARED, *(number + 2 for number in words)) if words else _COMPARED
    generator = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for column in encoding.columns:
        if column.values is None:
            numbers = column.mean + column.deviation * generator.normal(size=count)
            numbers[:: count // 4] = np.nan
            columns[column.name] = numbers
        else:
            held = [*column.values, "a word that nobody wrote", ""]
            columns[column.name] = [held[row % len(held)] for row in range(count)]
    return pd.DataFrame(columns)
