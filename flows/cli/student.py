"""Commands that use a student: `terrine predict`, `serve` and `export`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer
from rich.table import Column
from rich.text import Text

from flows.cli.options import (
    CsvOption,
    DeviceOption,
    FolderOption,
    JsonOption,
    ModelOption,
    ReferenceOption,
    RunArgument,
    RunOption,
    StatisticsName,
    StatisticsOption,
    chosen_name,
    refuse_two_formats,
)
from flows.printing import plain_table, printer

if TYPE_CHECKING:
    from tasks.serving.predict import Prediction, RowPredictions
    from terrine.deployment.model import StudentModel

# Typer does not support lists of literals.
Statistics = StrEnum("Statistics", list(get_args(StatisticsName)))
FormatName = StrEnum("FormatName", ["onnx", "pt2"])


def predict(
    images: Annotated[list[Path], typer.Argument(help="Image files or folders; for tables, CSV files.")],
    run: RunOption = None,
    folder: FolderOption = None,
    model: ModelOption = None,
    statistics: StatisticsOption = None,
    reference: ReferenceOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Predict classes, findings or grades of images or rows, with probabilities.

    Exit with status 1 if a file cannot be read; the others are predicted. Predictions are independent of each other,
    except with --statistics current. Tables need the columns on which the student was trained.
    """
    from tasks.reports.accuracy import gap_of
    from tasks.serving.predict import open_student, predict_files, predict_tables, student_folder
    from terrine.deployment.rows import TableStudent

    refuse_two_formats(as_json, as_csv)
    source = student_folder(run, folder, model)
    student = open_student(source, statistics, reference, device)
    failed: dict[Path, str] = {}
    if isinstance(student, TableStudent):
        _print_rows(predict_tables(student, images, failed), as_json, as_csv)
    else:
        predictions = predict_files(student, images, failed)
        gap = gap_of(source) if statistics is None and reference is None else None
        for note in filter(None, [gap and f"Warning: {gap}", student.note]):
            printer(stderr=True).print(note, style="yellow", soft_wrap=True)
        _print_images(predictions, student, as_json, as_csv)
        failed = {file: f"{file} {reason}." for file, reason in failed.items()}
    for reason in failed.values():
        printer(stderr=True).print(Text(f"Not answered: {reason}", style="red"), soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _print_images(predictions: list[Prediction], student: StudentModel, as_json: bool, as_csv: bool) -> None:
    """Print predictions for image files."""
    import pandas as pd

    scale, findings = student.scale, student.findings
    if as_json:
        records = [
            {"image": str(one.file), "findings": one.probabilities}
            if findings
            else {"image": str(one.file), "class": one.label}
            | ({} if one.number is None else {"number": one.number})
            | {"probability": one.probability, "probabilities": one.probabilities}
            for one in predictions
        ]
        typer.echo(json.dumps(records, indent=2, ensure_ascii=False))
    elif as_csv:
        likeliest = [] if findings else ["number"] * (scale is not None) + ["class", "probability"]
        columns = ["image", *likeliest, *(f"probability of {name}" for name in student.class_names)]
        rows = [
            {"image": str(one.file), "number": one.number, "class": one.label, "probability": one.probability}
            | {f"probability of {name}": value for name, value in one.probabilities.items()}
            for one in predictions
        ]
        typer.echo(pd.DataFrame(rows, columns=columns).to_csv(index=False, float_format="%.6f"), nl=False)
    elif findings:
        table = plain_table(Column("image", overflow="fold"), "finding", "score")
        for one in predictions:
            ranked = sorted(one.probabilities.items(), key=lambda pair: -pair[1])
            for place, (name, score) in enumerate(ranked):
                table.add_row("" if place else str(one.file), name, f"{100 * score:.1f} %")
        printer().print(table)
    else:
        middle = ["class"] if scale is None else ["number", "bin"] if scale.edges else ["grade", "mean grade"]
        table = plain_table(Column("image", overflow="fold"), *middle, "probability")
        for one in predictions:
            cells = [one.label] if scale is None else [one.label, f"{one.number:.4g}"]
            cells = cells[::-1] if middle[0] == "number" else cells
            table.add_row(str(one.file), *cells, f"{100 * one.probability:.1f} %")
        printer().print(table)


def _print_rows(files: list[RowPredictions], as_json: bool, as_csv: bool) -> None:
    """Print predictions for rows by line, and by file if there are several files."""
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
        table = plain_table(*(Column(name, overflow="fold") for name in shown))
        for values in found[shown].assign(probability=[f"{100 * p:.1f} %" for p in found["probability"]]).to_numpy():
            table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
        printer().print(table)


def serve(
    name: RunArgument = None,
    run: RunOption = None,
    folder: FolderOption = None,
    model: ModelOption = None,
    statistics: StatisticsOption = None,
    reference: ReferenceOption = None,
    device: DeviceOption = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 5001,
    key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="TERRINE_KEY_FILE",
            help="File with the API key that clients send as bearer token or password.",
        ),
    ] = None,
    max_megabytes: Annotated[int, typer.Option(min=1, max=1000, help="Maximum size of a request, in MB.")] = 16,
) -> None:
    """Serve predictions over HTTP: /images (images, .npy files), /rows (CSV files), /invocations (MLflow)."""
    from tasks.reports.accuracy import gap_of
    from tasks.serving.predict import OWN_STATISTICS, student_folder
    from tasks.serving.service import LOOPBACK, build_app, read_key
    from tasks.serving.service import serve as serve_app
    from terrine.deployment.rows import TableStudent

    console, source = printer(soft_wrap=True), student_folder(chosen_name(name, run), folder, model)
    app, student = build_app(
        source,
        statistics,
        reference=reference,
        device=device,
        most_bytes=max_megabytes * 1_000_000,
        key=read_key(key_file),
    )
    if reference is not None:
        console.print(OWN_STATISTICS, style="yellow")
    if host not in LOOPBACK:
        missing = "password and encryption" if key_file is None else "encryption"
        console.print(f"{host} is reachable from other machines without {missing}. Use a proxy.", style="yellow")
    address = f"http://{host}:{port}"
    if isinstance(student, TableStudent):
        console.print(f"{address}  {len(student.class_names)} classes of rows (stop with Ctrl-C)")
        console.print(f'curl --data-binary @rows.csv -H "content-type: text/csv" {address}/rows')
    else:
        console.print(
            f"{address}  {len(student.class_names)} classes, {student.statistics} statistics (stop with Ctrl-C)"
        )
        gap = gap_of(source) if statistics is None and reference is None else None
        for note in filter(None, [gap and f"Warning: {gap}", student.note]):
            console.print(note, style="yellow")
        console.print(f'curl --data-binary @image.png -H "content-type: image/png" {address}/images')
    serve_app(app, host, port)


def export(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    run: RunOption = None,
    folder: FolderOption = None,
    model: ModelOption = None,
    statistics: Annotated[
        list[Statistics],
        typer.Option(help="Statistics of the exported networks. May be repeated. Default: those used for serving."),
    ] = [],  # noqa: B006  # typer copies it
    format_: Annotated[list[FormatName], typer.Option("--format", help="Format. May be repeated.")] = list(FormatName),  # noqa: B006
    reference: ReferenceOption = None,
    dataset: Annotated[
        bool,
        typer.Option("--dataset", help="Export the drawn images with labels, as a dataset, instead of the student."),
    ] = False,
    labels: Annotated[
        Literal["answers", "student"] | None,
        typer.Option(
            help="Labels of --dataset: noisy answers, or the student's predictions. Default: answers, if any."
        ),
    ] = None,
) -> None:
    """Export the student as ONNX and PyTorch programs, or its training images as a dataset, with the statement.

    Each program is compared with the original. Digests of all files are included.
    """
    if dataset:
        _export_dataset(out, run, labels)
        return
    from tasks.serving.export import export_folder
    from tasks.serving.predict import OWN_STATISTICS, student_folder

    console = printer(soft_wrap=True)
    with console.status("exporting") as status:
        exported = export_folder(
            student_folder(run, folder, model),
            out,
            [name.value for name in statistics],
            [name.value for name in format_],
            reference=reference,
            progress=lambda text: status.update(f"exporting: {text}"),
        )
    table = plain_table("file", "statistics", "largest difference", title=str(out))
    for item in exported:
        table.add_row(item.file, item.statistics, f"{item.difference:.1e}")
    console.print(table, soft_wrap=False)
    if reference is not None:
        console.print(OWN_STATISTICS, style="yellow")
    _remind_of_signature(out)


def _remind_of_signature(out: Path) -> None:
    from tasks.serving.pages import FIGURES, SIGNATURE

    if (out / FIGURES).is_file() and not (out / SIGNATURE).is_file():
        told = "The statement is not signed. Sign it with terrine statement --sign, then export again."
        printer(soft_wrap=True).print(told, style="yellow")


def _export_dataset(out: Path, run: str | None, labels: Literal["answers", "student"] | None) -> None:
    from tasks.desk.dataset_export import export_dataset
    from tasks.runtime.run import chosen_run

    count, kind = export_dataset(chosen_run(run), out, labels)
    text = "released noisy answers" if kind == "answers" else "predictions of the student; this costs no privacy"
    printer(soft_wrap=True).print(f"{out}: {count:,} images, labels: {text}.")
    _remind_of_signature(out)
