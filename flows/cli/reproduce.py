"""Measured tables: presets, or a paper's tables, over several seeds; what the paper prints stands beside ours."""

from __future__ import annotations

import math
import statistics
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from flows.printing import printer
from terrine.errors import SettingError, TerrineError

if TYPE_CHECKING:
    from tasks.config.papers import Paper, PaperRow

Figures = list[dict[str, float]]
"""Of a row's finished runs, see `tasks.reports.summary.figures`."""


@dataclass
class Row:
    """A row that is to be made: its name, what it is made of, what a paper prints, its runs, one a seed."""

    name: str
    preset: str
    paper: PaperRow | None
    runs: tuple[str, ...]
    missing: str = "not made yet"
    """Why it has no figures, where it has none."""

    @property
    def is_of_a_paper(self) -> bool:
        """Whether it was asked for by the paper, not by its preset."""
        return self.paper is not None and self.name == self.paper.row

    def __str__(self) -> str:
        return f"{self.paper.table}: {self.name}" if self.paper is not None and self.is_of_a_paper else self.name


def reproduce(
    names: Annotated[
        list[str], typer.Argument(help="Presets, or a paper: scalable-pate, diet-pate, prom-pate, ttac, dpsd.")
    ],
    table: Annotated[str | None, typer.Option(help='Of papers, one table alone, as "Table 1".')] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Of papers, also the rows that need a GPU.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ... of each row.")] = 5,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a parameter: section.key=value.")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Make nothing: print what is finished so far.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table in Markdown, with more columns.")] = False,
) -> None:
    """Run presets, or the rows of a paper, over several seeds and print their table; finished runs are not run again.

    Where a paper has figures they stand beside ours, with what is less here, and it is said if accuracies differ by
    more than two standard deviations. Its ε is by its own account, ours is exact. All rows are made with one seed
    before the next seed begins.
    """
    from tasks.config.papers import papers
    from tasks.config.presets import project_root
    from tasks.reports.summary import figures
    from tasks.runtime.run import open_run

    root, overrides, known = project_root(), tuple(set_ or ()), papers()
    if table is not None and not any(name in known for name in names):
        raise SettingError(f"--table {table} is of a paper: name one of {', '.join(known)}.")
    rows, console = planned(root, names, known, table, seeds, overrides, gpu=gpu), printer(soft_wrap=True)
    complete = finished or make_all(root, rows, console.print)
    measured = [[figures(open_run(root, run)) for run in row.runs if is_finished(root, run)] for row in rows]
    if markdown:
        console.print(markdown_table(rows, measured))
    else:
        printer().print(terminal_table(rows, measured))
    for line in notes(rows, measured, [known[name] for name in names if name in known], table):
        console.print(line)
    if not complete:
        raise typer.Exit(1)


def planned(
    root: Path,
    names: Sequence[str],
    known: dict[str, Paper],
    table: str | None,
    seeds: int,
    overrides: tuple[str, ...],
    *,
    gpu: bool,
) -> list[Row]:
    """Return the rows of presets and papers; those for a GPU are without runs unless they are asked for."""
    from tasks.config.papers import published
    from tasks.config.presets import derive

    def row(name: str, preset: str, sets: tuple[str, ...], paper: PaperRow | None) -> Row:
        if paper is not None and paper.gpu and not gpu:
            return Row(name, preset, paper, (), "for a GPU")
        runs = [derive(root, preset, [*sets, *([f"seed={seed}"] if seed else [])]) for seed in range(seeds)]
        return Row(name, preset, paper, tuple(runs))

    rows = []
    for name in names:
        if name in known:
            rows += [row(one.row, one.preset, (*one.sets, *overrides), one) for one in known[name].chosen(table)]
        else:
            shown = " ".join([name, *(f"--set {override}" for override in overrides)])
            rows.append(row(f"`{shown}`", name, overrides, None if overrides else published(name)))
    return rows


def is_finished(root: Path, run: str) -> bool:
    """Tell whether the figures of a run are on disk."""
    from tasks.runtime.store import Folders

    folders = Folders(root, run)
    return folders.evaluation.is_file() and folders.statement.is_file()


def make_all(root: Path, rows: Sequence[Row], say: Callable[[str], None]) -> bool:
    """Make the runs of all rows, seed by seed, each under a line of its own; tells whether all could be made.

    A run that cannot be made, as for want of its data, does not end the others: its row says so.
    """
    from flows.logs import LoggedError
    from flows.making import make
    from tasks.config.presets import resolve
    from tasks.runtime.versioning import changed_stages
    from tasks.transcription.graph import pipeline_of

    by_seed = zip_longest(*(row.runs for row in rows))
    of = {run: row for runs in by_seed for run, row in zip(runs, rows, strict=True) if run is not None}
    complete = True
    for place, (run, row) in enumerate(of.items()):
        try:
            if is_finished(root, run) and not changed_stages(root, run, pipeline_of(resolve(root, run))):
                continue
            say(f"Run {place + 1} of {len(of)}, {run}: {row}{time_left(root, rows, list(of)[place:])}")
            make(root, run)
        except (TerrineError, LoggedError) as error:
            complete, row.missing = False, f"not made: {error}"
            say("\n".join([f"{row}: {row.missing}", *getattr(error, "__notes__", [])]))
    return complete


def time_left(root: Path, rows: Sequence[Row], waiting: Sequence[str]) -> str:
    """Return how long the unfinished among some runs will take, by what finished ones took: of the same preset, or
    all. Nothing where none is finished."""
    from tasks.runtime.run import Run
    from tasks.runtime.timing import timings

    took: dict[str, list[float]] = {}
    for row in rows:
        for run in filter(lambda run: is_finished(root, run), row.runs):
            spent = sum(record["seconds"] for record in timings(Run(root, run, None)).values())
            took.setdefault(row.preset, []).append(spent)
    if not took:
        return ""
    means = {preset: statistics.mean(seconds) for preset, seconds in took.items()}
    presets = {run: row.preset for row in rows for run in row.runs}
    left = [means.get(presets[run], statistics.mean(means.values())) for run in waiting if not is_finished(root, run)]
    minutes = sum(left) / 60
    return f"; about {f'{minutes / 60:.1f} hours' if minutes > 90 else f'{minutes:.0f} minutes'} from here to the end"


def accuracy_of(runs: Figures) -> tuple[float, float]:
    """Return mean and standard deviation of runs in per cent; 0 of one run alone, whose deviation nobody knows."""
    accuracies = [100 * run["accuracy"] for run in runs]
    return statistics.mean(accuracies), statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0


def shown(accuracy: float, spread: float) -> str:
    """Return an accuracy with its deviation, where that is known."""
    return f"{accuracy:.2f}" + f" ± {spread:.2f}" * (spread > 0)


def shown_epsilon(runs: Figures) -> str:
    """Return the largest exact ε of runs."""
    found = [run["epsilon"] for run in runs]
    return "none" if None in found else f"{max(found):.4f}"


def shown_answered(runs: Figures) -> str:
    """Return how many queries were answered, on the mean, of how many."""
    return f"{statistics.mean(run['answered'] for run in runs):.0f} / {runs[0]['queries']:.0f}"


def terminal_table(rows: Sequence[Row], measured: Sequence[Figures]) -> Table:
    """Return the table as a terminal of 80 columns has room for it; `notes` says what its letters stand for."""
    of_papers = any(row.paper is not None for row in rows)
    numbers = ["ours, %", "exact ε", *(["theirs, %", "their ε", "difference"] if of_papers else ["answered", "runs"])]
    table = Table(Column("row", overflow="fold"), box=None, pad_edge=False)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    above, letters = "", letters_of(rows)
    for row, runs in zip(rows, measured, strict=True):
        paper = row.paper
        if paper is not None and row.is_of_a_paper and paper.table != above:
            above = paper.table
            table.add_row(Text(above, style="bold"))
        ours = [shown(*accuracy_of(runs)), shown_epsilon(runs)] if runs else [row.missing.partition(":")[0], ""]
        if paper is not None:
            theirs = [shown(paper.accuracy, paper.spread), f"{paper.epsilon:g}" if paper.epsilon else ""]
            ours += [*theirs, difference(paper, runs)]
        elif not of_papers and runs:
            ours += [shown_answered(runs), str(len(runs))]
        table.add_row(f"{row.name} {letters.get(paper.reduced, '') if paper else ''}".strip(), *ours)
    return table


def markdown_table(rows: Sequence[Row], measured: Sequence[Figures]) -> str:
    """Return a Markdown table of the rows that have runs: accuracy is mean ± standard deviation over them."""
    of_papers = any(row.paper is not None for row in rows)
    lines = [
        "| row | accuracy % | exact ε | δ | answered / asked | teachers | runs |"
        + " published | less here |" * of_papers,
        "|---|---|---|---|---|---|---|" + "---|---|" * of_papers,
    ]
    for row, runs in zip(rows, measured, strict=True):
        if not runs:
            continue
        less = "–" if row.paper is None else row.paper.reduced or "nothing"
        lines.append(
            f"| {row} | {shown(*accuracy_of(runs))} | {shown_epsilon(runs)} | {runs[0]['delta']:g} "
            f"| {shown_answered(runs)} | {runs[0]['teachers']:.0f} | {len(runs)} |"
            + f" {beside(row.paper, *accuracy_of(runs))} | {less} |"
            * of_papers
        )
    return "\n".join(lines)


def differs(paper: PaperRow, accuracy: float, spread: float) -> bool:
    """Tell whether our mean differs from a paper's by more than two standard deviations.

    Deviations of both add up in squares. Where neither is known nothing is said.
    """
    return 0 < 2 * math.hypot(spread, paper.spread) < abs(accuracy - paper.accuracy)


def difference(paper: PaperRow, runs: Figures) -> str:
    """Return ours less theirs in points, with a star where they differ."""
    if not runs:
        return ""
    accuracy, spread = accuracy_of(runs)
    return f"{accuracy - paper.accuracy:+.2f} {'*' if differs(paper, accuracy, spread) else ' '}"


def beside(paper: PaperRow | None, accuracy: float, spread: float) -> str:
    """Return what a paper has, and whether ours differs from it."""
    if paper is None:
        return "–"
    epsilon = f" at its ε of {paper.epsilon:g}" if paper.epsilon is not None else ""
    said = ", **differs**" * differs(paper, accuracy, spread)
    return f"{shown(paper.accuracy, paper.spread)}{epsilon} ({paper.table}){said}"


def letters_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return a letter in brackets for each thing that is less here than in a paper."""
    less = dict.fromkeys(row.paper.reduced for row in rows if row.paper is not None and row.paper.reduced)
    return {text: f"[{letter}]" for text, letter in zip(less, string.ascii_letters, strict=False)}


def notes(rows: Sequence[Row], measured: Sequence[Figures], papers: Sequence[Paper], table: str | None) -> list[str]:
    """Return what is to be said below a table: what is less here, what differs, what is missing and how it is made."""
    lines = [""] + [f"{letter} {less}" for less, letter in letters_of(rows).items()]
    together = list(zip(rows, measured, strict=True))
    compared = [(row.paper, *accuracy_of(runs)) for row, runs in together if row.paper is not None and runs]
    if known := [differs(*one) for one in compared if one[0].spread or one[2]]:
        of = f"{sum(known)} of {_of(len(known), 'row')} whose deviation is known"
        lines.append(f"* more than two standard deviations apart: {of}.")
    if alone := sum(len(runs) == 1 for runs in measured):
        lines.append(
            f"{_of(alone, 'row')} ha{'s' if alone == 1 else 've'} one run, which has no deviation: --seeds 2 or more."
        )
    if waiting := [row for row, runs in together if len(runs) < len(row.runs)]:
        left = sum(len(row.runs) - len(runs) for row, runs in together)
        be = "is" if left == 1 else "are"
        lines.append(
            f"{_of(left, 'run')} of {_of(len(waiting), 'row')} {be} not made; the same command goes on with them."
        )
        lines += [f"  {row}: {row.missing}" for row in waiting if row.missing.startswith("not made:")]
    if left_out := sum(not row.runs for row in rows):
        lines.append(f"{_of(left_out, 'row')} need{'s' * (left_out == 1)} a GPU: --gpu makes them.")
    for paper in papers:
        lines.append(f"{paper.title}: {paper.page} says what is other here, setting by setting.")
        if table is None:
            lines += ["Made elsewhere:", *(f"  {name}: {command}" for name, command in paper.elsewhere.items())]
    return lines


def _of(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
