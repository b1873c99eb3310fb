"""`terrine compare`: ε and accuracy of finished runs, in the terminal or in MLflow."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, NoReturn

import typer
from rich.table import Column

from flows.cli.options import CsvOption, JsonOption, refuse_two_formats
from flows.printing import plain_table, printer


def compare(
    names: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Same as --run RUN.")] = None,
    run: Annotated[
        list[str] | None, typer.Option("--run", help="Name of a finished run. May be repeated. Default: all.")
    ] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    ui: Annotated[
        bool, typer.Option("--ui", help="Open the comparison in MLflow, on this machine only, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of --ui.")] = 5000,
) -> None:
    """Compare finished runs: ε, accuracy, answers, duration, and the settings in which they differ.

    CSV and JSON have one column per differing setting. Accuracies on private data are shown only if they were released
    with noise (evaluation.epsilon).
    """
    if ui:
        _open_mlflow(port)
    from tasks.config.presets import project_root
    from tasks.reports.accuracy import shown_accuracy
    from tasks.reports.comparison import columns, compared, differences, front
    from terrine.errors import ArtefactError

    refuse_two_formats(as_json, as_csv)
    root, runs = project_root(), list(dict.fromkeys([*(names or []), *(run or [])]))
    rows = compared(root, runs or None)
    if not rows:
        raise ArtefactError("No run of this project is finished. Make one: terrine run")
    if as_json:
        typer.echo(json.dumps(columns(rows), indent=2, ensure_ascii=False))
        return
    if as_csv:
        import pandas

        typer.echo(pandas.DataFrame(columns(rows)).to_csv(index=False), nl=False)
        return
    console, best = printer(), front(rows)
    table = plain_table(
        Column("run", no_wrap=True, overflow="fold"),
        Column("ε", justify="right", no_wrap=True),
        Column("δ", justify="right", no_wrap=True),
        Column("as served", justify="right", no_wrap=True),
        "",
        Column("teachers", justify="right"),
        Column("answered", justify="right"),
        Column("seconds", justify="right"),
        padding=(0, 1),
    )
    for row in rows:
        table.add_row(
            row.run,
            "none" if row.epsilon is None else f"{row.epsilon:.4f}",
            f"{row.delta:g}",
            "private" if row.accuracy is None else shown_accuracy(row.accuracy, row.plus_minus),
            "*" if row.run in best else "",
            "–" if row.teachers is None else f"{row.teachers:,}",
            "–" if row.answered is None else f"{row.answered:,}/{row.queries:,}",
            "" if row.seconds is None else f"{row.seconds:,.0f}",
        )
    console.print(table)
    console.print("* on the Pareto front: no run on the same data is as accurate at a smaller ε.")
    for row, differs in zip(rows, differences(rows), strict=True):
        if differs:
            console.print(f"{row.run} differs in {differs}")
    if any(row.accuracy is None for row in rows):
        console.print(
            "private: ε does not cover accuracies of private records. --set evaluation.epsilon=0.5 releases them with "
            "noise, and charges them.",
            highlight=False,
        )


def _open_mlflow(port: int) -> NoReturn:
    """Replace this process with MLflow's UI and print the address of the comparison."""
    from tasks.config.presets import project_root, resolve, selected_run
    from tasks.pipeline.mlflow_runs import create_database
    from tasks.runtime.locks import at_work
    from tasks.runtime.run import Run
    from tasks.runtime.store import read_json

    root = project_root()
    name = selected_run(root)
    run = Run(root, name, resolve(root, name))
    record = run.folders.private / "tracking.json"
    view = read_json(record).get("view", "") if record.is_file() else ""
    with at_work(root):
        create_database(run)
    print(f"MLflow: http://127.0.0.1:{port}/{view} in a few seconds (stop with Ctrl-C)", flush=True)
    uri = run.database(run.params.tracking.uri)
    arguments = ["-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port)]
    os.execv(sys.executable, [sys.executable, *arguments])
