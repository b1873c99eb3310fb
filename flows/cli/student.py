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
    import pandas as pd

    from tasks.serving.predict import RowPredictions
    from terrine.deployment.model import StudentModel

_OF_CLASS = "probability of "
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
        _print(_rows(predict_tables(student, images, failed)), as_json, as_csv)
    else:
        found = predict_files(student, images, failed)
        gap = gap_of(source) if statistics is None and reference is None else None
        for note in filter(None, [gap and f"Warning: {gap}", student.note]):
            printer(stderr=True).print(note, style="yellow", soft_wrap=True)
        _print(found, as_json, as_csv, _shown_images(found, student))
        failed = {file: f"{file} {reason}." for file, reason in failed.items()}
    for reason in failed.values():
        printer(stderr=True).print(Text(f"Not answered: {reason}", style="red"), soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _shown_images(found: pd.DataFrame, student: StudentModel) -> pd.DataFrame:
    """Return predictions for images as a table for people: several findings one below the other, likeliest first."""
    if student.findings:
        scores = found.drop(columns=["class", "probability"]).rename(columns=lambda name: name.removeprefix(_OF_CLASS))
        scores = scores.melt("image", var_name="finding", value_name="probability")
        return scores.sort_values(["image", "probability"], ascending=[True, False])
    if student.scale is not None and not student.scale.edges:
        return found.rename(columns={"class": "grade", "number": "mean grade"})
    return found.rename(columns={"class": "bin"}) if student.scale is not None else found


def _rows(files: list[RowPredictions]) -> pd.DataFrame:
    """Return predictions for rows by line, and by file if there are several files; print the files' notes."""
    import pandas as pd

    for file in files:
        for note in file.notes:
            printer(stderr=True).print(f"{file.file}: {note}", style="yellow")
    found = pd.concat([file.answers.reset_index().assign(file=str(file.file)) for file in files])
    found.insert(0, "file", found.pop("file"))
    return found.drop(columns="file") if len(files) == 1 else found


def _print(found: pd.DataFrame, as_json: bool, as_csv: bool, shown: pd.DataFrame | None = None) -> None:
    """Print predictions; `shown` is their table for people, if it differs."""
    if as_json:
        typer.echo(json.dumps(found.to_dict("records"), indent=2, ensure_ascii=False))
    elif as_csv:
        typer.echo(found.to_csv(index=False, float_format="%.6f"), nl=False)
    else:
        rows = found if shown is None else shown
        rows = rows[[name for name in rows if not name.startswith(_OF_CLASS)]]
        table = plain_table(*(Column(name, overflow="fold") for name in rows))
        for values in rows.assign(probability=[f"{100 * p:.1f} %" for p in rows["probability"]]).to_numpy():
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
    from tasks.serving.service import LOOPBACK, build_app, read_key, require_free_port
    from tasks.serving.service import serve as serve_app
    from terrine.deployment.rows import TableStudent

    require_free_port(host, port)
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
