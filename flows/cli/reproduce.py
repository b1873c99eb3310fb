"""Measured tables: a preset over several seeds, with mean and standard deviation, as docs/results.md holds them.

Beside a preset that is a paper's system stands what the paper prints.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Annotated

import typer

from flows.printing import printer
from flows.stopping import stoppable

if TYPE_CHECKING:
    from tasks.config.presets import PaperRow


def register(app: typer.Typer) -> None:
    """Add `reproduce` to the command line."""
    app.command()(stoppable()(reproduce))


def reproduce(
    presets: Annotated[list[str], typer.Argument(help="Presets to run.")],
    seeds: Annotated[int, typer.Option(help="Seeds 0, 1, ... of each preset.")] = 5,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a parameter: section.key=value.")] = None,
) -> None:
    """Run presets over several seeds and print the table of docs/results.md; finished runs are not run again.

    Where a paper has figures for a preset they stand beside it, and it is said if accuracies differ by more than two
    standard deviations. Its ε is by its own account, ours is exact.
    """
    from flows.making import make
    from tasks.config.presets import derive, project_root, read_preset, resolve
    from tasks.pipeline.graph import MAIN
    from tasks.reports.summary import figures
    from tasks.runtime.run import open_run, refuse_transcription
    from tasks.runtime.versioning import changed_stages

    root = project_root()
    overrides = list(set_ or [])
    rows = []
    for preset in presets:
        measured = []
        for seed in range(seeds):
            run = derive(root, preset, [*overrides, *([f"seed={seed}"] if seed else [])])
            refuse_transcription(run, resolve(root, run))
            if changed_stages(root, run, MAIN):
                make(root, run)
            measured.append(figures(open_run(root, run)))
        rows.append((preset, measured, None if overrides else read_preset(root, preset).paper))
    printer(soft_wrap=True).print(markdown_table(rows, overrides))


def markdown_table(rows: list[tuple[str, list[dict[str, float]], PaperRow | None]], overrides: list[str]) -> str:
    """Return a Markdown table: one row a preset, accuracy as mean ± standard deviation over its runs."""
    published = any(paper is not None for _, _, paper in rows)
    lines = [
        "| preset | accuracy % | exact ε | δ | answered / asked | teachers | runs |" + " published |" * published,
        "|---|---|---|---|---|---|---|" + "---|" * published,
    ]
    for preset, measured, paper in rows:
        accuracies = [100 * run["accuracy"] for run in measured]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        name = " ".join([preset, *(f"--set {override}" for override in overrides)])
        found = [run["epsilon"] for run in measured]
        worst = "none" if None in found else f"{max(found):.4f}"
        answered = statistics.mean(run["answered"] for run in measured)
        lines.append(
            f"| `{name}` | {statistics.mean(accuracies):.2f} ± {spread:.2f} | {worst} | {measured[0]['delta']:g} "
            f"| {answered:.0f} / {measured[0]['queries']:.0f} | {measured[0]['teachers']:.0f} | {len(measured)} |"
            + f" {beside(paper, statistics.mean(accuracies), spread)} |"
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
    return f"{shown} ({paper.where})" + ", **differs**" * differs
