"""`terrine compare`: finished runs beside each other, ε against accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from flows.cli.options import CsvOption, JsonOption, refuse_two_formats
from flows.printing import printer


def compare(
    runs: Annotated[list[str] | None, typer.Argument(help="Names of finished runs; default: all of them.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with the figure to this file.")] = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Compare finished runs: ε, accuracy as served, answers, seconds, and in which settings they differ.

    As CSV or JSON every setting that differs is a column.

    Accuracies of private data are compared only where they were released with noise (evaluation.epsilon).
    """
    from tasks.config.presets import project_root
    from tasks.reports.comparison import columns, compared, comparison_page, differences, front, readable
    from terrine.errors import ArtefactError
    from terrine.files import write_text

    refuse_two_formats(as_json, as_csv)
    root = project_root()
    rows = compared(root, list(dict.fromkeys(runs))) if runs else readable(root)
    if not rows:
        raise ArtefactError("No run of this project is finished. Make one with `terrine run`.")
    if html is not None:
        write_text(html, comparison_page(rows, f"Runs of {root.name}: ε against accuracy"))
    if as_json:
        typer.echo(json.dumps(columns(rows), indent=2, ensure_ascii=False))
        return
    if as_csv:
        import pandas

        typer.echo(pandas.DataFrame(columns(rows)).to_csv(index=False), nl=False)
        return
    console, best = printer(), front(rows)
    table = Table(
        Column("run", no_wrap=True, overflow="fold"),
        Column("ε", justify="right", no_wrap=True),
        Column("δ", justify="right", no_wrap=True),
        Column("as served", justify="right", no_wrap=True),
        "",
        Column("teachers", justify="right"),
        Column("answered", justify="right"),
        Column("seconds", justify="right"),
        box=None,
        pad_edge=False,
        padding=(0, 1),
    )
    for row in rows:
        table.add_row(
            row.run,
            row.shown_epsilon,
            f"{row.delta:g}",
            row.shown_accuracy,
            "*" if row.run in best else "",
            row.shown_teachers,
            row.shown_answered,
            "" if row.seconds is None else f"{row.seconds:,.0f}",
        )
    console.print(table)
    console.print("* on the Pareto front: no run of the same data is as accurate at a smaller ε.")
    for row, differs in zip(rows, differences(rows), strict=True):
        if differs:
            console.print(f"{row.run} differs in {differs}")
    if any(row.accuracy is None for row in rows):
        console.print(
            "private: no ε covers a choice by accuracies of private records. --set evaluation.epsilon=0.5 releases one "
            "with noise, and charges it.",
            highlight=False,
        )
    if html is not None:
        console.print(f"Written: {html}", soft_wrap=True)
