"""`terrine sweep`: try several settings, charged as they are made, and say what the search itself costs."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from flows.printing import printer

if TYPE_CHECKING:
    from tasks.tools.sweep import Candidate


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
    workers: Annotated[int, typer.Option(min=1, help="How many candidates are made at once.")] = 1,
) -> None:
    """Make a run of every combination of values, and show ε of each and of the search; finished runs are kept.

    The budget of the dataset must cover the worst case of all of them before the first is made. The run that commands
    mean stays the one that it was.
    """
    from tasks.config.presets import project_root, selected_run
    from tasks.tools.sweep import candidates_of, check_budget, outcome
    from tasks.tools.sweep_tracking import cells_of, log_sweep, summary

    root = project_root()
    console = printer(soft_wrap=True)
    start = preset or selected_run(root)
    candidates = candidates_of(root, start, list(set_ or []), vary, select)
    prepare(root, candidates[0].run)
    new = check_budget(root, candidates)
    console.print(f"{len(candidates)} candidates, at most {new} new releases: the budget covers them.")
    state_price(root, candidates)
    failures = make_all(root, candidates, workers)
    result = outcome(root, candidates, failures, select)
    parent = log_sweep(root, start, result)
    headings, *rows = cells_of(result)
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in summary(result):
        console.print(line)
    if parent is not None:
        console.print(f"MLflow run {parent} (make ui)")


def state_price(root: Path, candidates: list[Candidate]) -> None:
    """Note the search's price, as it stands before the start, where the candidates' statements quote it."""
    from flows.making import is_made
    from flows.stages import state_anew
    from tasks.runtime.assurance import record_search
    from tasks.runtime.run import Run
    from tasks.tools.sweep import worst_case_price

    price, delta = worst_case_price(root, candidates), candidates[0].params.aggregation.delta
    for candidate in candidates:
        run = Run(root, candidate.run, candidate.params)
        record_search(run, price, delta)
        if is_made(root, candidate.run):
            state_anew(root, candidate.run)


def prepare(root: Path, run: str) -> None:
    """Lay down the dataset, so that the account is known before anything else is done. No noise is drawn."""
    from flows.stages import make_changed

    make_changed(root, run, ("parameters", "dataset"))


def make_all(root: Path, candidates: list[Candidate], workers: int = 1) -> dict[str, str]:
    """Make every candidate that is not complete; return those that failed by themselves, with the reason.

    A refusal by the ledger ends the sweep. With more workers than one, each candidate has a process of its own.
    """
    from flows.making import is_made
    from terrine.errors import BudgetError, LedgerError, TerrineError

    released, failures = set[str](), dict[str, str]()
    waiting = list(candidates)
    with _makers(workers) as submit:
        while waiting:
            # Of candidates that share a release, and so teachers and votes, one goes before the others.
            first = {one.release: one for one in reversed(waiting)}
            now = [one for one in waiting if one.release in released or first[one.release] is one]
            now = now if workers > 1 else waiting[:1]
            waiting = [candidate for candidate in waiting if candidate not in now]
            begun = [(one, None if is_made(root, one.run) else submit(root, one.run)) for one in now]
            for candidate, making in begun:
                try:
                    if making is not None:
                        making.result()
                    released.add(candidate.release)
                except (BudgetError, LedgerError):
                    raise
                except TerrineError as error:
                    failures[candidate.run] = str(error)
    return failures


@contextmanager
def _makers(workers: int) -> Iterator[Callable[[Path, str], Future[None]]]:
    """Yield what makes a run: here and at once, or in one of several processes."""
    if workers == 1:
        yield _here
        return
    # Started anew, for a fork would share what this process has of Prefect and of torch.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            yield partial(pool.submit, _apart)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _here(root: Path, run: str) -> Future[None]:
    from flows import making

    done = Future[None]()
    try:
        done.set_result(making.make(root, run))
    except Exception as error:
        done.set_exception(error)
    return done


def _apart(root: Path, run: str) -> None:
    """Make a run in a worker process: its log has what it would show."""
    from flows import making
    from flows.environment import prepare_environment

    prepare_environment()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        making.make(root, run)
