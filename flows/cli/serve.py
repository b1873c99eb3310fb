"""`terrine serve`: a student behind a port."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import DeviceOption, FolderOption, ModelOption, ReferenceOption, RunOption, StatisticsOption
from flows.printing import printer

console = printer()


def serve(
    run: RunOption = None,
    folder: FolderOption = None,
    model: ModelOption = None,
    statistics: StatisticsOption = None,
    reference: ReferenceOption = None,
    device: DeviceOption = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on; anybody who reaches it may ask.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 5001,
    key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="TERRINE_KEY_FILE",
            help="A file that holds a key: whoever asks shows it, as a bearer's token or as a browser's password.",
        ),
    ] = None,
    max_megabytes: Annotated[int, typer.Option(min=1, max=1000, help="Largest body of a request.")] = 16,
) -> None:
    """Answer requests over HTTP: MLflow's /invocations, /images for pictures and .npy stacks, /rows for CSV files."""
    from tasks.reports.accuracy import gap_of
    from tasks.serving.guarantee import OWN_STATISTICS
    from tasks.serving.serve import LOOPBACK, build_app, read_key
    from tasks.serving.serve import serve as serve_app
    from tasks.serving.student_source import student_folder
    from terrine.deployment.rows import TableStudent

    source = student_folder(run, folder, model)
    app, student = build_app(
        source,
        statistics,
        reference=reference,
        device=device,
        most_bytes=max_megabytes * 1_000_000,
        key=read_key(key_file),
    )
    if reference is not None:
        console.print(OWN_STATISTICS, style="yellow", soft_wrap=True)
    if host not in LOOPBACK:
        lacks = "password and encryption" if key_file is None else "encryption"
        console.print(f"{host} can be reached from elsewhere, without {lacks}: put a proxy in front.", style="yellow")
    address = f"http://{host}:{port}"
    if isinstance(student, TableStudent):
        console.print(f"{address}  {len(student.class_names)} classes of rows (Ctrl-C ends it)")
        console.print(f'curl --data-binary @rows.csv -H "content-type: text/csv" {address}/rows')
    else:
        console.print(
            f"{address}  {len(student.class_names)} classes, {student.statistics} statistics (Ctrl-C ends it)"
        )
        gap = gap_of(source) if statistics is None and reference is None else None
        for note in filter(None, [gap and f"Warning: {gap}", student.note]):
            console.print(note, style="yellow", soft_wrap=True)
        console.print(f'curl --data-binary @image.png -H "content-type: image/png" {address}/images')
    serve_app(app, host, port)
