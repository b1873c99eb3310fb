"""`terrine compare`: ε and accuracy of finished runs, in the terminal, as an HTML page or in MLflow."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
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
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page: a chart of ε and accuracy, and a table.", metavar="FILE")
    ] = None,
    ui: Annotated[
        bool, typer.Option("--ui", help="Open the comparison in MLflow, on this machine only, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of MLflow's page with --ui.")] = 5000,
) -> None:
    """Compare finished runs: ε, accuracy, answers, duration, and the settings in which they differ.

    CSV and JSON have one column per differing setting. Accuracies on private data are shown only if they were released
    with noise (evaluation.epsilon).
    """
    if ui:
        _open_mlflow(port)
    from tasks.config.presets import project_root
    from tasks.reports.comparison import columns, compared, differences, render_comparison, table_cells
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
    if html is not None:
        html.write_text(render_comparison(rows), encoding="utf8")
        typer.echo(f"Wrote {html}: {len(rows)} runs.")
        return
    console, cells = printer(), table_cells(rows)
    table = plain_table(Column("run", no_wrap=True, overflow="fold"), padding=(0, 1))
    for heading in list(cells[0])[1:]:
        table.add_column(heading, justify="right", no_wrap=heading in ("ε", "ε, added", "δ", "as served", "front"))
    for texts in cells:
        table.add_row(*texts.values())
    console.print(table)
    if "ε, added" in cells[0]:
        console.print("ε, added: if a unit is only added or removed.")
    console.print("front: no run on the same data is as accurate at a smaller ε (Pareto front).")
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
    """Print the addresses of all runs and of the latest sweep, and replace this process with MLflow's UI."""
    from tasks.config.presets import project_root, resolve, selected_run
    from tasks.pipeline.mlflow_runs import create_database, open_experiment, runs_view, sweep_view
    from tasks.runtime.locks import at_work
    from tasks.runtime.run import Run

    root = project_root()
    name = selected_run(root)
    run = Run(root, name, resolve(root, name))
    with at_work(root):
        create_database(run)
        client, experiment = open_experiment(run)
        sweep = sweep_view(client, experiment)
    address = f"http://127.0.0.1:{port}/"
    print(f"MLflow, in a few seconds (stop with Ctrl-C): {address}{runs_view(experiment)}", flush=True)
    if sweep is not None:
        print(f"The latest sweep: {address}{sweep}", flush=True)
    uri = run.database(run.params.tracking.uri)
    arguments = ["-m", "mlflow", "ui", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port)]
    os.execv(sys.executable, [sys.executable, *arguments])
