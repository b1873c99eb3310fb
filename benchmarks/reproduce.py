"""Reproduce presets, or the rows of a paper, over several seeds, and print their table.

    python -m benchmarks.reproduce ttac [--table "Table 1"] [--gpu] [--seeds 5] [--workers 2] [--finished]
    python -m benchmarks.reproduce terrine-mnist terrine-mnist-eps1 --set aggregation.sigma=60 --markdown

The published figures of a paper are in benchmarks/papers/NAME.yaml: its title, its page of docs/, the rows of its
tables, and the commands for its other tables. They are printed beside ours, with what is smaller or different here, and
a star if accuracies differ by more than two standard deviations. Their ε is by the paper's own account; ours is exact.

Finished runs are not made again: run the same command again after an interruption. A run that cannot be made, e.g. for
lack of data, leaves the others; the exit status is 1.
A Markdown table may be published: of private data it has released accuracies only, and neither paths nor accounts.
"""

# ruff: noqa: E402  Prefect and torch read the environment when they are imported

import math
import statistics
import string
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from benchmarks.cells import common_options
from benchmarks.tables import measurements
from flows.cli import main as run_command
from flows.environment import prepare_environment
from flows.printing import LoggedError, printer
from flows.stopping import stoppable

prepare_environment()

from flows import stages
from flows.sweep import run_makers
from tasks.config.params import Params
from tasks.config.presets import derive, project_root, redact_override, resolve
from tasks.config.values import read_yaml
from tasks.reports.accuracy import known_accuracy
from tasks.runtime.progress import timings
from tasks.runtime.run import Run, open_run
from tasks.runtime.stage_graph import Pipeline
from tasks.runtime.store import Folders, read_json
from tasks.transcription.graph import pipeline_of
from terrine.errors import SettingError, TerrineError, did_you_mean
from terrine.privacy.statement import read_statement

PAPERS = Path(__file__).with_name("papers")


@dataclass(frozen=True)
class PaperRow:
    """An accuracy that a paper prints, in per cent, and the preset that reproduces it.

    table: Its table, figure or section. row: Its row or cell there. spread: The number after ±. epsilon: ε by the
    paper's own account. sets: `--set` assignments. reduced: What is smaller or different here; empty if the preset is
    the paper's system. gpu: Whether two CPU cores would take a day or more for five seeds. other_data: Whether the
    paper used another dataset, so that accuracies cannot be compared.
    """

    table: str
    preset: str
    accuracy: float
    row: str = ""
    spread: float = 0.0
    epsilon: float | None = None
    sets: tuple[str, ...] = ()
    reduced: str = ""
    gpu: bool = False
    other_data: bool = False

    @property
    def of_a_preset(self) -> bool:
        """True if the row is compared with an unchanged preset."""
        return not self.sets and not self.reduced


@dataclass(frozen=True)
class Paper:
    """A paper: its rows, the commands for other tables and figures, and the reasons why some cannot be made here."""

    name: str
    title: str
    page: str
    rows: tuple[PaperRow, ...]
    elsewhere: dict[str, str]
    not_possible: dict[str, str] = field(default_factory=dict)
    cells: dict[str, Any] = field(default_factory=dict)

    def chosen(self, table: str | None) -> tuple[PaperRow, ...]:
        """Return the rows of one table, or all. Raises SettingError for a table without rows."""
        tables = dict.fromkeys(row.table for row in self.rows)
        if table is None or table in tables:
            return tuple(row for row in self.rows if table in (None, row.table))
        if table in self.elsewhere:
            raise SettingError(f"{table} of {self.name} is made by {self.elsewhere[table]}.")
        if table in self.not_possible:
            raise SettingError(f"{table} of {self.name} is not possible here: {self.not_possible[table]}.")
        raise SettingError(
            f"{self.name} has no rows of '{table}' here, but of {', '.join(tables)}.{did_you_mean(table, tables)}"
        )


def papers() -> dict[str, Paper]:
    """Return all papers by name."""
    found = {}
    for path in sorted(PAPERS.glob("*.yaml")):
        values = read_yaml(path)
        values.pop("shared", None)  # YAML anchors
        rows = [row | {"table": table} for table, rows in values.pop("tables").items() for row in rows]
        made = tuple(PaperRow(sets=tuple(row.pop("set", ())), **row) for row in rows)
        found[path.stem] = Paper(name=path.stem, rows=made, elsewhere=values.pop("elsewhere", {}), **values)
    return found


def committed_rows() -> dict[str, str]:
    """Return the accuracies in docs/measurements by table and row, in per cent."""
    tables = [table for name, table in measurements().items() if name.startswith("papers/reproduced-")]
    return {
        row[0]: row[table["columns"].index("ours, %")]
        for table in tables
        for block in table["measured"]
        for row in block["rows"]
    }


def published(preset: str) -> PaperRow | None:
    """Return the row of a paper whose system is this preset, if there is one."""
    rows = (row for paper in papers().values() for row in paper.rows)
    return next((row for row in rows if row.preset == preset and row.of_a_preset), None)


@dataclass
class Row:
    """A row of our table: its name, its preset, the paper's row, and its runs, one per seed."""

    name: str
    preset: str
    paper: PaperRow | None
    runs: tuple[str, ...]
    missing: str = "not made yet"
    """Why the row has no figures."""
    figures: list[dict[str, float]] = field(default_factory=list)
    """`figures` of its finished runs."""
    committed: str = ""
    """Accuracy in docs/measurements, in per cent."""

    def __str__(self) -> str:
        return f"{self.paper.table}: {self.name}" if self.paper is not None and self.is_of_a_paper else self.name

    @property
    def is_of_a_paper(self) -> bool:
        """True if the row was requested by its paper, not by its preset."""
        return self.paper is not None and self.name == self.paper.row

    @property
    def accuracy(self) -> tuple[float, float]:
        """Accuracy as served; beside a paper that in batches, as the papers measure."""
        return self.mean_of("accuracy" if self.paper is None else "in_batches")

    def mean_of(self, figure: str) -> tuple[float, float]:
        """Mean and standard deviation in per cent; of one run the deviation is 0."""
        found = [100 * run[figure] for run in self.figures]
        return statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0

    @property
    def epsilon(self) -> str:
        """The largest exact ε; in brackets the one for a unit that is only added or removed, if it is smaller."""
        found = [run["epsilon"] for run in self.figures]
        added = [run["epsilon_added"] for run in self.figures if run.get("epsilon_added") is not None]
        return "none" if None in found else f"{max(found):.4f}" + (f" ({max(added):.4f})" if added else "")

    @property
    def answered(self) -> str:
        """Mean numbers of queries answered, and asked before the budget ended; a dash for sum mechanisms."""
        mean = (f"{statistics.mean(run[name] for run in self.figures):.0f}" for name in ("answered", "queried"))
        return " / ".join(mean) if self.figures[0]["queries"] else "–"


def figures(run: Run, *, published: bool = False) -> dict[str, float]:
    """Return the figures of a finished run; accuracies are from the private evaluation, the rest is public.

    `accuracy` is as served, `in_batches` under the batch statistics of the student's training, if it has any.
    published: whether the figures may be published. Accuracies are then those of a public benchmark or the released
    one, or NaN if neither exists.
    """
    statement, evaluation = read_statement(run.folders.statement), read_json(run.folders.evaluation)
    accuracy = evaluation["accuracy"]
    in_batches = evaluation.get("in_batches", evaluation)["accuracy"]
    if published and not run.params.data.public_benchmark:
        accuracy = in_batches = known_accuracy(run).get("accuracy_released", math.nan)
    public = {name: statement[name] for name in ("epsilon", "delta", "answered", "queried", "queries", "teachers")}
    added = statement.get("epsilon_added")
    return {"accuracy": accuracy, "in_batches": in_batches, "epsilon_added": added} | public


def make_all(root: Path, rows: Sequence[Row], workers: int = 1) -> bool:
    """Make the runs of all rows and return whether all could be made.

    One worker makes them seed by seed, so that an early end has some of every row. Several make the seeds of a row at
    the same time, and the rows one after the other, because rows share teachers.
    """
    by_seed = zip_longest(*(row.runs for row in rows))
    of = {run: row for runs in by_seed for run, row in zip(runs, rows, strict=True) if run is not None}
    groups = [(run,) for run in of] if workers == 1 else [row.runs for row in rows]
    complete, order = True, list(of)
    with run_makers(workers) as submit:
        for group in groups:
            begun = {}
            for run in group:
                if not stages.is_complete(root, run):
                    left = time_left(root, rows, order[order.index(run) :]) if workers == 1 else ""
                    print(f"Run {order.index(run) + 1} of {len(order)}, {run}: {of[run]}{left}", flush=True)
                    begun[run] = submit(root, run)
            for run, making in begun.items():
                try:
                    making.result()
                except (TerrineError, LoggedError) as error:
                    row = of[run]
                    complete, row.missing = False, f"not made: {error}"
                    print(f"{row}: {row.missing}", *getattr(error, "__notes__", []), sep="\n", flush=True)
    return complete


def time_left(root: Path, rows: Sequence[Row], waiting: Sequence[str]) -> str:
    """Estimate the remaining time from finished runs of the same preset, or of all presets; empty if none is finished.

    waiting: runs in order, of which the first is made even if it is finished. Outputs that a run takes over from
    another run take no time.
    """
    presets = {run: row.preset for row in rows for run in row.runs}
    finished = [run for run in presets if Folders(root, run).finished]
    took: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in finished:
        for stage, record in timings(Run(root, run, None)).items():
            took[presets[run]][stage].append(record["seconds"])
    if not took:
        return ""
    means = {preset: {stage: statistics.mean(each) for stage, each in spent.items()} for preset, spent in took.items()}
    of_any_preset = {"": statistics.mean(sum(spent.values()) for spent in means.values())}
    made = [run for run in finished if run != waiting[0]]
    there, seconds = {""}, 0.0
    for run in [*made, *(run for run in waiting if run not in made)]:
        params = resolve(root, run)
        pipeline = pipeline_of(params)
        keys = {stage: inspected(params, stage, pipeline) for stage in pipeline.names}
        if run not in made:
            spent = means.get(presets[run], of_any_preset)
            seconds += sum(each for stage, each in spent.items() if not keys.get(stage) or keys[stage] not in there)
        there |= set(keys.values())
    minutes = seconds / 60
    if minutes > 90:
        return f"; about {minutes / 60:.1f} hours from here to the end"
    shown = "less than a minute" if minutes < 1 else f"about {counted(round(minutes), 'minute')}"
    return f"; {shown} from here to the end"


def inspected(params: Params, stage: str, pipeline: Pipeline) -> str:
    """Return all settings on which the result of a stage depends that runs reuse; nothing for another stage."""
    if not pipeline[stage].shared:
        return ""
    makers = {artefact: made for made in pipeline.stages for artefact in made.makes.split()}
    found, waiting = {stage}, [pipeline[stage]]
    while waiting:
        for artefact in waiting.pop().needs.split():
            if (maker := makers.get(artefact)) is not None and maker.name not in found:
                found.add(maker.name)
                waiting.append(maker)
    keys = {key for name in found for key in pipeline[name].settings.split()}
    asks = "public/images" in pipeline[stage].needs.split()
    keys = {key for key in keys if asks or not key.startswith("queries.")}
    site = (params.data, params.privacy.unit, params.ledger)
    return repr((stage, site, [(key, attrgetter(key)(params)) for key in sorted(keys)]))


def counted(number: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def shown(accuracy: float, spread: float) -> str:
    """Return an accuracy with its deviation, if that is known."""
    return "not released" if math.isnan(accuracy) else f"{accuracy:.2f}" + f" ± {spread:.2f}" * (spread > 0)


def differs(paper: PaperRow, accuracy: float, spread: float) -> bool:
    """Return whether our mean is more than two standard deviations (of both, in squares) from the paper's."""
    return not paper.other_data and 0 < 2 * math.hypot(spread, paper.spread) < abs(accuracy - paper.accuracy)


def beside(paper: PaperRow | None, accuracy: float, spread: float) -> str:
    """Return the paper's figure, and whether ours differs from it."""
    if paper is None:
        return "–"
    epsilon = f" at its ε of {paper.epsilon:g}" if paper.epsilon is not None else ""
    said = ", **differs**" * differs(paper, accuracy, spread)
    return f"{shown(paper.accuracy, paper.spread)}{epsilon} ({paper.table}){said}"


def letters_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return a letter in brackets for each reduction."""
    less = dict.fromkeys(row.paper.reduced for row in rows if row.paper is not None and row.paper.reduced)
    return {text: f"[{letter}]" for text, letter in zip(less, string.ascii_letters, strict=False)}


def terminal_table(rows: Sequence[Row]) -> Table:
    """Return the table for a terminal of 80 columns; `notes` explains its letters."""
    of_papers = any(row.paper is not None for row in rows)
    compared = "committed, %" if any(row.committed for row in rows) else "difference"
    numbers = ["ours, %", "exact ε", *(["theirs, %", "their ε", compared] if of_papers else ["answered", "runs"])]
    table = Table(Column("row", overflow="fold"), box=None, pad_edge=False)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    above, letters = "", letters_of(rows)
    for row in rows:
        paper = row.paper
        if paper is not None and row.is_of_a_paper and paper.table != above:
            above = paper.table
            table.add_row(Text(above, style="bold"))
        ours = [shown(*row.accuracy), row.epsilon] if row.figures else [row.missing.partition(":")[0], ""]
        if paper is not None:
            ours += [shown(paper.accuracy, paper.spread), f"{paper.epsilon:g}" if paper.epsilon else ""]
            if compared != "difference":
                ours.append(row.committed)
            elif row.figures:
                star = "*" if differs(paper, *row.accuracy) else " "
                difference = f"{row.accuracy[0] - paper.accuracy:+.2f} {star}"
                ours.append("other data" if paper.other_data else difference)
        elif not of_papers and row.figures:
            ours += [row.answered, str(len(row.figures))]
        table.add_row(f"{row.name} {letters.get(paper.reduced, '') if paper else ''}".strip(), *ours)
    return table


def markdown_table(rows: Sequence[Row]) -> str:
    """Return the rows that have figures as Markdown; accuracies are mean ± standard deviation over runs.

    It may be published if the rows' figures may be.
    """
    columns = ["row", "as served %", "in batches %", "exact ε", "δ", "answered / asked", "teachers", "runs"]
    of_papers = any(row.paper is not None for row in rows)
    columns += ["published", "less here"] * of_papers
    lines = [columns, ["---"] * len(columns)]
    for row in (row for row in rows if row.figures):
        line = [str(row), shown(*row.mean_of("accuracy")), shown(*row.mean_of("in_batches")), row.epsilon]
        first = row.figures[0]
        teachers = f"{first['teachers']:.0f}" if first["queries"] else "–"
        line += [f"{first['delta']:g}", row.answered, teachers, str(len(row.figures))]
        less = "–" if row.paper is None else row.paper.reduced or "nothing"
        lines.append([*line, *[beside(row.paper, *row.accuracy), less] * of_papers])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def notes(rows: Sequence[Row], papers: Sequence[Paper], table: str | None, *, reasons: bool = True) -> list[str]:
    """Return the lines below a table: reductions, differences, missing runs, and commands for other tables.

    reasons: whether to print why runs could not be made, which may name files.
    """
    lines = ["", *(f"{letter} {less}" for less, letter in letters_of(rows).items())]
    compared = [(row.paper, *row.accuracy) for row in rows if row.paper is not None and row.figures]
    if known := [differs(*one) for one in compared if one[0].spread or one[2]]:
        of = f"{sum(known)} of {counted(len(known), 'row')} whose deviation is known"
        lines.append(f"* more than two standard deviations apart: {of}.")
    if alone := sum(len(row.figures) == 1 for row in rows):
        have = "has" if alone == 1 else "have"
        lines.append(f"{counted(alone, 'row')} {have} one run, which has no deviation: --seeds 2 or more.")
    if gaps := [row for row in rows if row.paper and any(run["accuracy"] != run["in_batches"] for run in row.figures)]:
        served = statistics.mean(100 * run["accuracy"] for row in gaps for run in row.figures)
        lines.append(
            "Accuracies beside a paper's are in batches, as the papers measure. As served, image by image, the mean "
            f"of {counted(len(gaps), 'row')} is {served:.2f} %."
        )
    if waiting := [row for row in rows if len(row.figures) < len(row.runs)]:
        left = sum(len(row.runs) - len(row.figures) for row in waiting)
        runs = f"{counted(left, 'run')} of {counted(len(waiting), 'row')} {'is' if left == 1 else 'are'} not made"
        lines.append(f"{runs}; the same command goes on with them.")
        lines += [f"  {row}: {row.missing}" for row in waiting if reasons and row.missing.startswith("not made:")]
    if left_out := sum(not row.runs for row in rows):
        lines.append(f"{counted(left_out, 'row')} need{'s' * (left_out == 1)} a GPU: --gpu makes them.")
    for paper in papers:
        lines.append(f"{paper.title}: {paper.page} says what is other here, setting by setting.")
        if table is None:
            lines += ["Made elsewhere:", *(f"  {name}: {command}" for name, command in paper.elsewhere.items())]
            lines += ["Not possible here:", *(f"  {name}: {reason}" for name, reason in paper.not_possible.items())]
    return lines


@stoppable()
def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is not finished and print the table; exit with 1 if a run could not be made."""
    known = papers()
    parser = common_options(__doc__, set=[])
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"presets, or a paper: {', '.join(known)}")
    parser.add_argument("--table", help='of papers, one table only, as "Table 1"')
    parser.add_argument("--gpu", action="store_true", help="of papers, also the rows that need a GPU")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, ... of each row")
    parser.add_argument("--workers", type=int, default=1, help="seeds of a row that are made at the same time")
    parser.add_argument(
        "--finished", action="store_true", help="make nothing: print finished rows, beside the committed measurements"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown, with more columns")
    given = parser.parse_args(arguments)
    queried = [known[name] for name in given.names if name in known]
    if min(given.seeds, given.workers) < 1 or (given.table is not None and not queried):
        parser.error(f"--seeds and --workers are at least 1, and --table needs a paper: {', '.join(known)}")
    root = project_root()

    overrides = " ".join(f"--set {redact_override(override)}" for override in given.set)

    def row(name: str, preset: str, sets: Sequence[str], paper: PaperRow | None) -> Row:
        for_gpu = paper is not None and paper.gpu
        if overrides:  # another system or other data than the paper's: nothing to compare
            table = f"{paper.table}: " if paper is not None and name == paper.row else ""
            name, paper = f"{table}{name} {overrides}", None
        if for_gpu and not given.gpu:
            return Row(name, preset, paper, (), "for a GPU")
        each = [[*sets, *([f"seed={seed}"] if seed else [])] for seed in range(given.seeds)]
        runs = (derive(root, preset, assignments, save=not given.finished) for assignments in each)
        return Row(name, preset, paper, tuple(runs))

    rows = []
    for name in given.names:
        if name in known:
            chosen = known[name].chosen(given.table)
            rows += [row(one.row, one.preset, (*one.sets, *given.set), one) for one in chosen]
        else:
            rows.append(row(f"`{name}`", name, given.set, published(name)))
    complete = given.finished or make_all(root, rows, given.workers)
    if given.finished:
        stored = committed_rows()
        for each in (each for each in rows if each.paper is not None):
            each.committed = stored.get(str(each), "")
    for each in rows:
        finished = (open_run(root, run) for run in each.runs if Folders(root, run).finished)
        each.figures = [figures(run, published=given.markdown) for run in finished]
    if given.markdown:
        print(markdown_table(rows))
    else:
        printer().print(terminal_table(rows))
    print(*notes(rows, queried, given.table, reasons=not given.markdown), sep="\n")
    if not complete:
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
