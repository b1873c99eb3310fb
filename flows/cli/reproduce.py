"""`terrine reproduce`: make presets, or the rows of a paper, over several seeds, and print their table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.printing import printer
from terrine.errors import SettingError, TerrineError

if TYPE_CHECKING:
    from tasks.config.papers import Paper, PaperRow
    from tasks.reports.reproduced import Row


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
    before the next seed begins. A table in Markdown may be published: of private data it has released accuracies only,
    and neither paths nor accounts.
    """
    from tasks.config.papers import papers
    from tasks.config.presets import project_root
    from tasks.reports.reproduced import markdown_table, notes, terminal_table
    from tasks.reports.summary import figures
    from tasks.runtime.run import open_run
    from tasks.runtime.store import Folders

    root, overrides, known = project_root(), tuple(set_ or ()), papers()
    if table is not None and not any(name in known for name in names):
        raise SettingError(f"--table {table} is of a paper: name one of {', '.join(known)}.")
    console = printer(soft_wrap=True)
    rows = planned(root, names, known, table, seeds, overrides, gpu=gpu, keeps=not finished)
    complete = finished or make_all(root, rows, console.print)
    for row in rows:
        finished_runs = (open_run(root, run) for run in row.runs if Folders(root, run).finished)
        row.figures = [figures(run, published=markdown) for run in finished_runs]
    if markdown:
        console.print(markdown_table(rows))
    else:
        printer().print(terminal_table(rows))
    for line in notes(rows, [known[name] for name in names if name in known], table, reasons=not markdown):
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
    keeps: bool,
) -> list[Row]:
    """Return the rows of presets and papers; those for a GPU are without runs unless they are asked for.

    keeps: whether what runs stand for is written, so that they can be made.
    """
    from tasks.config.papers import published
    from tasks.config.presets import derive, shown_assignment
    from tasks.reports.reproduced import Row

    def row(name: str, preset: str, sets: tuple[str, ...], paper: PaperRow | None) -> Row:
        if paper is not None and paper.gpu and not gpu:
            return Row(name, preset, paper, (), "for a GPU")
        each = [[*sets, *([f"seed={seed}"] if seed else [])] for seed in range(seeds)]
        return Row(name, preset, paper, tuple(derive(root, preset, chosen, keeps=keeps) for chosen in each))

    rows = []
    for name in names:
        if name in known:
            rows += [row(one.row, one.preset, (*one.sets, *overrides), one) for one in known[name].chosen(table)]
        else:
            shown = " ".join([name, *(f"--set {shown_assignment(override)}" for override in overrides)])
            rows.append(row(f"`{shown}`", name, overrides, None if overrides else published(name)))
    return rows


def make_all(root: Path, rows: Sequence[Row], say: Callable[[str], None]) -> bool:
    """Make the runs of all rows, seed by seed, each under a line of its own; tells whether all could be made.

    A run that cannot be made, as for want of its data, does not end the others: its row says so.
    """
    from flows.logs import LoggedError
    from flows.making import is_made, make

    by_seed = zip_longest(*(row.runs for row in rows))
    of = {run: row for runs in by_seed for run, row in zip(runs, rows, strict=True) if run is not None}
    complete = True
    for place, (run, row) in enumerate(of.items()):
        try:
            if is_made(root, run):
                continue
            say(f"Run {place + 1} of {len(of)}, {run}: {row}{time_left(root, rows, list(of)[place:])}")
            make(root, run)
        except (TerrineError, LoggedError) as error:
            complete, row.missing = False, f"not made: {error}"
            say("\n".join([f"{row}: {row.missing}", *getattr(error, "__notes__", [])]))
    return complete


def time_left(root: Path, rows: Sequence[Row], waiting: Sequence[str]) -> str:
    """Return how long the first of some runs, and the unfinished among the others, will take, by what finished ones
    took: of the same preset, or all. What a run takes over from another takes no time. Nothing where none is finished.
    """
    from tasks.config.presets import resolve
    from tasks.runtime.run import Run
    from tasks.runtime.sharing import looked_at
    from tasks.runtime.store import Folders
    from tasks.runtime.timing import timings
    from tasks.transcription.graph import pipeline_of

    presets = {run: row.preset for row in rows for run in row.runs}
    finished = [run for run in presets if Folders(root, run).finished]
    took: dict[str, dict[str, list[float]]] = {}
    for run in finished:
        for stage, record in timings(Run(root, run, None)).items():
            took.setdefault(presets[run], {}).setdefault(stage, []).append(record["seconds"])
    if not took:
        return ""
    means = {preset: {stage: statistics.mean(each) for stage, each in spent.items()} for preset, spent in took.items()}
    unknown = statistics.mean(sum(spent.values()) for spent in means.values())
    there: set[str] = set()
    seconds = 0.0
    made = [run for run in finished if run != waiting[0]]  # that one is made again, as after a change of its preset
    for run in [*made, *(run for run in waiting if run not in made)]:
        params = resolve(root, run)
        pipeline = pipeline_of(params)
        keys = {stage: looked_at(params, stage, pipeline) for stage in pipeline.names}
        if run not in made:
            spent = means.get(presets[run])
            own = (each for stage, each in (spent or {}).items() if keys.get(stage) not in there)
            seconds += unknown if spent is None else sum(own)
        there |= {key for key in keys.values() if key}
    minutes = seconds / 60
    if minutes < 1:
        shown = "less than a minute"
    elif minutes > 90:
        shown = f"about {minutes / 60:.1f} hours"
    else:
        shown = f"about {minutes:.0f} minute{'s' * (round(minutes) != 1)}"
    return f"; {shown} from here to the end"
