"""Measured tables: presets, or a paper's tables, over several seeds; what the paper prints stands beside ours."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from flows.printing import printer
from flows.stopping import stoppable
from terrine.errors import SettingError

if TYPE_CHECKING:
    from tasks.config.papers import Paper, PaperRow


class Row(NamedTuple):
    """A row that is to be made: its name, what a paper prints, and the runs, one a seed."""

    name: str
    paper: PaperRow | None
    runs: tuple[str, ...]


def register(app: typer.Typer) -> None:
    """Add `reproduce` to the command line."""
    app.command()(stoppable()(reproduce))


def reproduce(
    names: Annotated[
        list[str], typer.Argument(help="Presets, or a paper: scalable-pate, diet-pate, prom-pate, ttac, dpsd.")
    ],
    table: Annotated[str | None, typer.Option(help='Of papers, one table alone, as "Table 1".')] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Of papers, also the rows that need a GPU.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ... of each row.")] = 5,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a parameter: section.key=value.")] = None,
) -> None:
    """Run presets, or the rows of a paper, over several seeds and print their table; finished runs are not run again.

    Where a paper has figures they stand beside ours, with what is less here, and it is said if accuracies differ by
    more than two standard deviations. Its ε is by its own account, ours is exact.
    """
    from flows.making import make
    from tasks.config.papers import papers, published
    from tasks.config.presets import derive, project_root, resolve
    from tasks.reports.summary import figures
    from tasks.runtime.run import open_run
    from tasks.runtime.versioning import changed_stages
    from tasks.transcription.graph import pipeline_of

    root, overrides, known = project_root(), tuple(set_ or ()), papers()
    if table is not None and not any(name in known for name in names):
        raise SettingError(f"--table {table} is of a paper: name one of {', '.join(known)}.")

    def planned(name: str, preset: str, sets: tuple[str, ...], paper: PaperRow | None) -> Row:
        runs = [derive(root, preset, [*sets, *([f"seed={seed}"] if seed else [])]) for seed in range(seeds)]
        return Row(name, paper, tuple(runs))

    rows, console, left_out = [], printer(soft_wrap=True), []
    for name in names:
        if name in known:
            for row in known[name].chosen(table):
                if row.gpu and not gpu:
                    left_out.append(row)
                else:
                    rows.append(planned(f"{row.table}: {row.row}", row.preset, (*row.sets, *overrides), row))
        else:
            shown = " ".join([name, *(f"--set {override}" for override in overrides)])
            rows.append(planned(f"`{shown}`", name, overrides, None if overrides else published(name)))
    measured = []
    for row in rows:
        for run in row.runs:
            if changed_stages(root, run, pipeline_of(resolve(root, run))):
                make(root, run)
        measured.append([figures(open_run(root, run)) for run in row.runs])
    console.print(markdown_table(rows, measured))
    for line in notes([known[name] for name in names if name in known], left_out, table):
        console.print(line, markup=False)


def markdown_table(rows: list[Row], measured: list[list[dict[str, float]]]) -> str:
    """Return a Markdown table: a line for each row, accuracy as mean ± standard deviation over its runs."""
    published = any(row.paper is not None for row in rows)
    lines = [
        "| row | accuracy % | exact ε | δ | answered / asked | teachers | runs |"
        + " published | less here |" * published,
        "|---|---|---|---|---|---|---|" + "---|---|" * published,
    ]
    for row, runs in zip(rows, measured, strict=True):
        accuracies = [100 * run["accuracy"] for run in runs]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        found = [run["epsilon"] for run in runs]
        worst = "none" if None in found else f"{max(found):.4f}"
        answered = statistics.mean(run["answered"] for run in runs)
        less = "–" if row.paper is None else row.paper.reduced or "nothing"
        lines.append(
            f"| {row.name} | {statistics.mean(accuracies):.2f} ± {spread:.2f} | {worst} | {runs[0]['delta']:g} "
            f"| {answered:.0f} / {runs[0]['queries']:.0f} | {runs[0]['teachers']:.0f} | {len(runs)} |"
            + f" {beside(row.paper, statistics.mean(accuracies), spread)} | {less} |"
            * published
        )
    return "\n".join(lines)


def beside(paper: PaperRow | None, accuracy: float, spread: float) -> str:
    """Return what a paper has, and whether our mean differs from it by more than two standard deviations.

    Deviations of both add up in squares. Where neither is known nothing is said.
    """
    if paper is None:
        return "–"
    shown = f"{paper.accuracy:.2f}" + (f" ± {paper.spread:.2f}" if paper.spread else "")
    shown += f" at its ε of {paper.epsilon:g}" if paper.epsilon is not None else ""
    deviation = math.hypot(spread, paper.spread)
    differs = 0 < 2 * deviation < abs(accuracy - paper.accuracy)
    return f"{shown} ({paper.table})" + ", **differs**" * differs


def notes(papers: list[Paper], left_out: list[PaperRow], table: str | None) -> list[str]:
    """Return what is to be said below a table: rows that were left out, and what makes a paper's other tables."""
    lines = []
    if left_out:
        shown = "; ".join(f"{row.table}, {row.row} ({row.preset})" for row in left_out)
        lines.append(f"\nLeft out, for they need a GPU (--gpu): {shown}.")
    for paper in papers if table is None else []:
        lines.append(f"\n{paper.title}: {paper.page} says what differs. Made elsewhere:")
        lines += [f"  {name}: {command}" for name, command in paper.elsewhere.items()]
    return lines
