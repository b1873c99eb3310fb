"""`terrine sweep`: try several settings, charged as they are made, and say what the search itself costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from flows.printing import printer
from flows.stopping import at_the_end, stoppable

if TYPE_CHECKING:
    from tasks.tools.sweep import Candidate


def register(app: typer.Typer) -> None:
    """Add `sweep` to the command line."""
    app.command()(stoppable()(sweep))


def sweep(
    vary: Annotated[list[str], typer.Option(help="Values to try: section.key=value,value. May be repeated.")],
    preset: Annotated[str | None, typer.Option(help="What to start from; default: the run selected last.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a parameter in all candidates.")] = None,
    select: Annotated[
        Literal["none", "evaluation", "released"],
        typer.Option(
            help="Name the best by test accuracy (evaluation; public benchmark data only), by accuracies with noise "
            "(released; see evaluation.epsilon), or none."
        ),
    ] = "none",
) -> None:
    """Make a run of every combination of values, and show ε of each and of the search; finished runs are kept.

    The budget of the dataset must cover the worst case of all of them before the first is made.
    """
    from tasks.config.presets import project_root, resolve, selected_run
    from tasks.runtime import versioning
    from tasks.tools.sweep import candidates_of, check_budget, check_selection, outcome, votes_on_disk
    from tasks.tools.sweep_tracking import cells_of, log_sweep, summary
    from tasks.transcription.graph import pipeline_of

    root = project_root()
    console = printer(soft_wrap=True)
    before = selected_run(root)
    candidates = candidates_of(root, preset or before, list(set_ or []), vary)
    check_selection(candidates, select)

    def select_as_before() -> None:
        """A sweep chooses nothing: the run that was selected before is so again."""
        versioning.select(root, before, pipeline_of(resolve(root, before)))

    try:
        with at_the_end(select_as_before):
            prepare(root, candidates[0].run)
            new = check_budget(root, candidates)
            console.print(f"{len(candidates)} candidates, at most {new} new releases: the budget covers them.")
            state_price(root, candidates)
            failures = make_all(root, candidates, votes_on_disk(root, candidates))
            result = outcome(root, candidates, failures, select)
            parent = log_sweep(root, preset or before, result)
    finally:
        select_as_before()
    headings, *rows = cells_of(result)
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in summary(result):
        console.print(line)
    console.print(f"MLflow run {parent} (make ui)")


def state_price(root: Path, candidates: list[Candidate]) -> None:
    """Note the search's price, as it stands before the start, where the candidates' statements quote it."""
    from flows.stages import make_stage
    from tasks.pipeline.graph import MAIN
    from tasks.runtime.assurance import record_search
    from tasks.runtime.run import Run
    from tasks.runtime.versioning import changed_stages
    from tasks.tools.sweep import worst_case_price

    price, delta = worst_case_price(candidates), candidates[0].params.aggregation.delta
    for candidate in candidates:
        run = Run(root, candidate.run, candidate.params)
        record_search(run, price, delta)
        if run.folders.statement.is_file() and not changed_stages(root, candidate.run, MAIN):
            make_stage(root, candidate.run, "aggregate")


def prepare(root: Path, run: str) -> None:
    """Lay down the dataset, so that the account is known before anything else is done. No noise is drawn."""
    from flows.stages import make_stage
    from tasks.pipeline.graph import MAIN
    from tasks.runtime.versioning import is_changed

    for stage in ("parameters", "dataset"):
        if is_changed(root, run, stage, MAIN):
            make_stage(root, run, stage)


def make_all(root: Path, candidates: list[Candidate], made: Mapping[str, str]) -> dict[str, str]:
    """Make every candidate that is not complete; return those that failed by themselves, with the reason.

    `made` holds a run for every release that exists; candidates that share a release are made from one run's votes. A
    candidate that nothing can be learnt from does not end the sweep; a refusal by the ledger does.
    """
    from tasks.pipeline.graph import MAIN
    from tasks.runtime.versioning import changed_stages
    from terrine.errors import BudgetError, LedgerError, TerrineError

    sources, failures = dict(made), dict[str, str]()
    for candidate in candidates:
        try:
            if changed_stages(root, candidate.run, MAIN):
                make(root, candidate.run, sources.get(candidate.release))
            sources.setdefault(candidate.release, candidate.run)
        except (BudgetError, LedgerError):
            raise
        except TerrineError as error:
            failures[candidate.run] = str(error)
    return failures


def make(root: Path, run: str, source: str | None) -> None:
    """Run the pipeline, from the votes of another run where that made the same release."""
    from flows import pipeline
    from flows.stages import make_stage
    from tasks.tools.sweep import share_votes

    if source is not None and source != run:
        make_stage(root, run, "parameters")
        share_votes(root, source, run)
    pipeline.make(root, run)
