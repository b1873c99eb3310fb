"""`terrine board`: rival methods on all sets of a public collection, in one table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from flows.printing import printer
from flows.stopping import stoppable


class Collection(StrEnum):
    """A collection of public sets."""

    medmnist = "medmnist"


@stoppable()
def board(
    collection: Annotated[Collection, typer.Argument(help="The collection.")],
    root: Annotated[Path, typer.Option(help="Where its files lie, or in medmnist/ below.")] = Path(
        "data/private/source"
    ),
    work: Annotated[Path, typer.Option(help="Where features and figures are kept, and the table is written.")] = Path(
        "data/private/board"
    ),
    sets: Annotated[list[str] | None, typer.Option("--set", help="A set; may be repeated. Default: all.")] = None,
    methods: Annotated[list[str] | None, typer.Option("--method", help="A method; may be repeated.")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(min=0.01, help="May be repeated; default: 1, 3 and 8.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of the noise.")] = 5,
) -> None:
    """Measure votes, moments, gradients, DP-SGD and no privacy on every set that is there; a killed board goes on.

    Noise is replayed from seeds: nothing of it is private, and only public benchmarks are read.
    """
    from tasks.tools.board import COLUMNS, METHODS, NOTICE, available, cells_of
    from tasks.tools.board import board as fill

    console = printer()
    if not sets:
        for name, why in available(root)[1].items():
            console.print(f"No row for {name}: {why}.", soft_wrap=True)
    rows = fill(
        root,
        work,
        sets=sets or (),
        methods=methods or METHODS,
        epsilons=epsilon or (1.0, 3.0, 8.0),
        seeds=seeds,
        progress=console.print,
    )
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*cells_of(row))
    console.print(table)
    console.print(NOTICE, f"Written: {work / 'board.md'} and {work / 'board.json'}.", sep="\n", soft_wrap=True)
