"""What `terrine reproduce` prints: measured runs in a table, what a paper prints beside them, and notes below."""

from __future__ import annotations

import math
import statistics
import string
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Column, Table
from rich.text import Text

from tasks.config.papers import Paper, PaperRow


@dataclass
class Row:
    """A row that is to be made: its name, what it is made of, what a paper prints, its runs, one a seed."""

    name: str
    preset: str
    paper: PaperRow | None
    runs: tuple[str, ...]
    missing: str = "not made yet"
    """Why it has no figures, where it has none."""
    figures: list[dict[str, float]] = field(default_factory=list)
    """Of its finished runs, see `tasks.reports.summary.figures`."""

    @property
    def is_of_a_paper(self) -> bool:
        """Whether it was asked for by the paper, not by its preset."""
        return self.paper is not None and self.name == self.paper.row

    def __str__(self) -> str:
        return f"{self.paper.table}: {self.name}" if self.paper is not None and self.is_of_a_paper else self.name

    @property
    def accuracy(self) -> tuple[float, float]:
        """Mean and standard deviation in per cent; 0 of one run alone, whose deviation nobody knows.

        As served; beside a paper, which measures so, in batches under the statistics of the student's training.
        """
        return self.mean_of("accuracy" if self.paper is None else "in_batches")

    def mean_of(self, figure: str) -> tuple[float, float]:
        """Mean and standard deviation in per cent of `accuracy` (as served) or `in_batches`."""
        found = [100 * run[figure] for run in self.figures]
        return statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0

    @property
    def epsilon(self) -> str:
        """The largest exact ε."""
        found = [run["epsilon"] for run in self.figures]
        return "none" if None in found else f"{max(found):.4f}"

    @property
    def answered(self) -> str:
        """How many queries were answered, and asked before the budget ended, on the mean; a dash where records add up
        sums.
        """
        if not self.figures[0]["queries"]:
            return "–"
        return " / ".join(f"{statistics.mean(run[name] for run in self.figures):.0f}" for name in ("answered", "asked"))

    @property
    def teachers(self) -> str:
        """How many voted; a dash as for `answered`."""
        return f"{self.figures[0]['teachers']:.0f}" if self.figures[0]["queries"] else "–"


def shown(accuracy: float, spread: float) -> str:
    """Return an accuracy with its deviation, where that is known."""
    if math.isnan(accuracy):
        return "not released"
    return f"{accuracy:.2f}" + f" ± {spread:.2f}" * (spread > 0)


def terminal_table(rows: Sequence[Row]) -> Table:
    """Return the table as a terminal of 80 columns has room for it; `notes` says what its letters stand for."""
    of_papers = any(row.paper is not None for row in rows)
    numbers = ["ours, %", "exact ε", *(["theirs, %", "their ε", "difference"] if of_papers else ["answered", "runs"])]
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
            theirs = [shown(paper.accuracy, paper.spread), f"{paper.epsilon:g}" if paper.epsilon else ""]
            ours += [*theirs, difference(paper, *row.accuracy) if row.figures else ""]
        elif not of_papers and row.figures:
            ours += [row.answered, str(len(row.figures))]
        table.add_row(f"{row.name} {letters.get(paper.reduced, '') if paper else ''}".strip(), *ours)
    return table


def markdown_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of the rows that have runs: accuracies are mean ± standard deviation over them.

    It may be published if the rows' figures may be (`tasks.reports.summary.figures`).
    """
    of_papers = any(row.paper is not None for row in rows)
    lines = [
        "| row | as served % | in batches % | exact ε | δ | answered / asked | teachers | runs |"
        + " published | less here |" * of_papers,
        "|---|---|---|---|---|---|---|---|" + "---|---|" * of_papers,
    ]
    for row in filter(lambda row: row.figures, rows):
        less = "–" if row.paper is None else row.paper.reduced or "nothing"
        lines.append(
            f"| {row} | {shown(*row.mean_of('accuracy'))} | {shown(*row.mean_of('in_batches'))} "
            f"| {row.epsilon} | {row.figures[0]['delta']:g} | {row.answered} | {row.teachers} | {len(row.figures)} |"
            + f" {beside(row.paper, *row.accuracy)} | {less} |"
            * of_papers
        )
    return "\n".join(lines)


def differs(paper: PaperRow, accuracy: float, spread: float) -> bool:
    """Tell whether our mean differs from a paper's by more than two standard deviations.

    Deviations of both add up in squares. Where neither is known nothing is said.
    """
    return 0 < 2 * math.hypot(spread, paper.spread) < abs(accuracy - paper.accuracy)


def difference(paper: PaperRow, accuracy: float, spread: float) -> str:
    """Return ours less theirs in points, with a star where they differ."""
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


def notes(rows: Sequence[Row], papers: Sequence[Paper], table: str | None, *, reasons: bool = True) -> list[str]:
    """Return what is to be said below a table: what is less here, what differs, what is missing and how it is made.

    reasons: whether to say why runs could not be made, which may name files.
    """
    lines = [""] + [f"{letter} {less}" for less, letter in letters_of(rows).items()]
    compared = [(row.paper, *row.accuracy) for row in rows if row.paper is not None and row.figures]
    if known := [differs(*one) for one in compared if one[0].spread or one[2]]:
        of = f"{sum(known)} of {_of(len(known), 'row')} whose deviation is known"
        lines.append(f"* more than two standard deviations apart: {of}.")
    if alone := sum(len(row.figures) == 1 for row in rows):
        lines.append(
            f"{_of(alone, 'row')} ha{'s' if alone == 1 else 've'} one run, which has no deviation: --seeds 2 or more."
        )
    if gaps := [row for row in rows if row.paper and any(run["accuracy"] != run["in_batches"] for run in row.figures)]:
        served = statistics.mean(100 * run["accuracy"] for row in gaps for run in row.figures)
        lines.append(
            "Accuracies beside a paper's are in batches, as the papers measure. As served, image by image, the mean "
            f"of {_of(len(gaps), 'row')} is {served:.2f} %."
        )
    if waiting := [row for row in rows if len(row.figures) < len(row.runs)]:
        left = sum(len(row.runs) - len(row.figures) for row in waiting)
        be = "is" if left == 1 else "are"
        lines.append(
            f"{_of(left, 'run')} of {_of(len(waiting), 'row')} {be} not made; the same command goes on with them."
        )
        if reasons:
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
