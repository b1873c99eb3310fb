"""A sweep: a run for every combination of values, charged as they are made, and the cost of the search itself."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prefect import flow
from prefect.runtime import deployment
from rich.table import Table

from flows.environment import prepare_environment
from flows.printing import printer, shorten_users_errors
from flows.server import prefect_server
from flows.site_policy import check_overrides
from flows.stages import is_complete, make_changed, make_run, rewrite_statement
from tasks.config.presets import project_root, selected_run
from tasks.runtime.releases import record_search
from tasks.runtime.run import Run
from terrine.errors import BudgetError, LedgerError, TerrineError

if TYPE_CHECKING:
    from tasks.tools.sweep import Candidate

Select = Literal["none", "evaluation", "released"]


@flow(name="sweep")
def sweep_flow(
    vary: list[str], preset: str | None = None, overrides: list[str] | None = None, select: Select = "none"
) -> None:
    """Run a sweep as a deployment; see `sweep`.

    Raises:
        SettingError: If it sets what a deployment may not override (`flows.site_policy`).
    """
    shorten_users_errors()
    if deployment.id is not None:
        check_overrides(project_root(), [*vary, *(overrides or [])])
    sweep(vary, preset, overrides, select)


def sweep(
    vary: list[str],
    preset: str | None = None,
    overrides: list[str] | None = None,
    select: Select = "none",
    workers: int = 1,
) -> None:
    """Make a run of every combination of values and print ε of each and of the search. Finished runs are kept.

    The budget must cover the worst case of all candidates before the first is made.

    Args:
        vary: Values to try, `section.key=value,value`.
        preset: The preset or run to start from. Default: the run that was selected last.
        overrides: Settings of all candidates.
        select: How the best candidate is chosen.
        workers: Number of candidates that are made at the same time.
    """
    from tasks.tools.sweep import check_budget, log_sweep, make_candidates, outcome, summary, table_cells

    root = project_root()
    console = printer(soft_wrap=True)
    start = preset or selected_run(root)
    candidates = make_candidates(root, start, list(overrides or []), vary, select)
    prepare(root, candidates[0].run)
    new = check_budget(root, candidates)
    console.print(f"{len(candidates)} candidates, at most {new} new releases: the budget covers them.")
    state_price(root, candidates)
    failures = make_all(root, candidates, workers)
    result = outcome(root, candidates, failures, select)
    parent = log_sweep(root, start, result)
    headings, *rows = table_cells(result)
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


def prepare(root: Path, run: str) -> None:
    """Prepare the dataset, so that the account is known. No noise is drawn."""
    make_changed(root, run, ("parameters", "dataset"))


def state_price(root: Path, candidates: list[Candidate]) -> None:
    """Record the cost of the search, as planned, for the statements of its candidates."""
    from tasks.tools.sweep import worst_case_price

    price, delta = worst_case_price(root, candidates), candidates[0].params.aggregation.delta
    for candidate in candidates:
        record_search(Run(root, candidate.run, candidate.params), price, delta)
        if is_complete(root, candidate.run):
            rewrite_statement(root, candidate.run)


def make_all(root: Path, candidates: list[Candidate], workers: int = 1) -> dict[str, str]:
    """Make every candidate that is not complete, with more than one worker each in a process of its own.

    Returns:
        The reason of each failure, by run. A refusal by the ledger ends the sweep instead.
    """
    released, failures = set[str](), dict[str, str]()
    waiting = list(candidates)
    with run_makers(workers) as submit:
        while waiting:
            # Of candidates that share a release, and so teachers and votes, one is made before the others.
            first = {one.release: one for one in reversed(waiting)}
            now = [one for one in waiting if one.release in released or first[one.release] is one]
            now = now if workers > 1 else waiting[:1]
            waiting = [candidate for candidate in waiting if candidate not in now]
            begun = [(one, None if is_complete(root, one.run) else submit(root, one.run)) for one in now]
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
def run_makers(workers: int) -> Iterator[Callable[[Path, str], Future[None]]]:
    """Yield a function that makes a run: here, or in one of several processes that share a server."""
    if workers == 1:
        yield _here
        return
    # Spawned: a fork would share the state of Prefect and torch with this process.
    context = multiprocessing.get_context("spawn")
    with prefect_server(), ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            yield partial(pool.submit, _apart)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _here(root: Path, run: str) -> Future[None]:
    done = Future[None]()
    try:
        done.set_result(make_run(root, run))
    except Exception as error:
        done.set_exception(error)
    return done


def _apart(root: Path, run: str) -> None:
    """Make a run in a worker process; its log has the lines that it would print."""
    prepare_environment()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        make_run(root, run)
