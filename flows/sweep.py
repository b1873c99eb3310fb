"""Sweep: a run for every combination of values, each charged when it is made, and the cost of the search itself."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.runtime import deployment
from rich.table import Table

from flows.environment import prepare_environment
from flows.pipeline import make_run
from flows.printing import printer, shorten_users_errors, shown_duration
from flows.server import prefect_server
from flows.site_policy import check_overrides
from flows.stages import is_complete, make_changed, rewrite_statement
from tasks.config.presets import project_root, selected_run
from tasks.runtime.decisions import ApprovalNeeded
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
    """Run a sweep from a deployment; see `sweep`.

    Raises:
        SettingError: If an override changes a setting that a deployment may not change (`flows.site_policy`).
    """
    shorten_users_errors()
    if deployment.id is not None:
        check_overrides(project_root(), [*vary, *(overrides or [])])
    result = sweep(vary, preset, overrides, select)
    from tasks.tools.sweep import summary, table_cells

    headings, *rows = table_cells(result)
    table = [dict(zip(headings, row, strict=True)) for row in rows]
    create_table_artifact(table, key=f"sweep-{result['candidates'][0]['run']}", description="\n".join(summary(result)))
    for line in summary(result):
        get_run_logger().info(line)


def sweep(
    vary: list[str],
    preset: str | None = None,
    overrides: list[str] | None = None,
    select: Select = "none",
    workers: int = 1,
) -> dict[str, Any]:
    """Execute a run for every combination of values; print and return ε of each run and of the search.

    The budget must cover the worst case of all candidates before the first is made.

    Args:
        vary: Values to try, `section.key=value,value`.
        preset: The preset or run to start from. Default: the run that was selected last.
        overrides: Settings of all candidates.
        select: How the best candidate is chosen.
        workers: Number of candidates that are made at the same time.
    """
    from tasks.tools.sweep import check_budget, log_sweep, make_candidates, note_on_noise, outcome, summary, table_cells

    root = project_root()
    console = printer(soft_wrap=True)
    start = preset or selected_run(root)
    candidates = make_candidates(root, start, list(overrides or []), vary, select)
    make_changed(root, candidates[0].run, ("parameters", "dataset"))  # the account depends on the dataset
    new = check_budget(root, candidates)
    console.print(f"{len(candidates)} candidates, at most {new} new releases: the budget covers them.")
    if note := note_on_noise(candidates):
        console.print(note)
    state_price(root, candidates)
    failures = make_all(root, candidates, workers, console.print)
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
        console.print(f"MLflow run {parent} (terrine compare --ui)")
    console.print(
        "terrine compare shows all runs. DVC shows only the default one and those in runs/.gitignore (docs/dvc.md)."
    )
    return result


def state_price(root: Path, candidates: list[Candidate]) -> None:
    """Record the worst-case cost of the search for the statements of its candidates."""
    from tasks.tools.sweep import worst_case_price

    price, delta = worst_case_price(root, candidates), candidates[0].params.aggregation.delta
    for candidate in candidates:
        record_search(Run(root, candidate.run, candidate.params), price, delta)
        if is_complete(root, candidate.run):
            rewrite_statement(root, candidate.run)


def make_all(
    root: Path, candidates: list[Candidate], workers: int = 1, show: Callable[[str], object] = print
) -> dict[str, str]:
    """Complete every incomplete candidate, in separate processes if there are several workers.

    Args:
        root: The project.
        candidates: The candidates.
        workers: Number of candidates that are made at the same time.
        show: Called with a line when a candidate is started and, with several workers, when it is finished.

    Returns:
        The reason of each failure, by run.

    Raises:
        BudgetError: If the ledger refuses a release.
        LedgerError: If the ledger refuses a release.
        ApprovalNeeded: If releases need approvals. The message contains the requests of all candidates.
    """
    released, failures, requests = set[str](), dict[str, str](), list[str]()
    waiting, begin, started, finished = list(candidates), time.monotonic(), 0, 0

    def left(done: int) -> str:
        seconds = time.monotonic() - begin
        return f", {shown_duration(seconds / done * (len(candidates) - done))} left" if done else ""

    def submit(candidate: Candidate) -> Future[None] | None:
        nonlocal started
        started += 1
        if is_complete(root, candidate.run):
            show(f"{started}/{len(candidates)}  {candidate.text}, complete")
            return None
        show(f"{started}/{len(candidates)}  {candidate.text}{left(started - 1) if workers == 1 else ''}")
        return make(root, candidate.run)

    with run_makers(workers) as make:
        while waiting:
            # The first candidate of each release runs before those that share its teachers and votes.
            first = {one.release: one for one in reversed(waiting)}
            now = [one for one in waiting if one.release in released or first[one.release] is one]
            now = now if workers > 1 else waiting[:1]
            waiting = [candidate for candidate in waiting if candidate not in now]
            begun = [(one, submit(one)) for one in now]
            for candidate, making in begun:
                finished += 1
                try:
                    if making is not None:
                        making.result()
                        if workers > 1:
                            show(f"{finished}/{len(candidates)} finished: {candidate.text}{left(finished)}")
                    released.add(candidate.release)
                except (BudgetError, LedgerError):
                    raise
                except ApprovalNeeded as needed:
                    requests.append(str(needed))
                except TerrineError as error:
                    failures[candidate.run] = str(error)
    if requests:
        raise ApprovalNeeded("\n\n".join([*requests, "When all are decided, start the sweep again."]))
    return failures


@contextmanager
def run_makers(workers: int) -> Iterator[Callable[[Path, str], Future[None]]]:
    """Yield a function that executes a run in this process, or in one of several processes that share a server."""
    if workers == 1:
        yield _here
        return
    # A forked process would share the state of Prefect and torch with this one.
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
    """Execute a run in a worker process without output; the lines go to the run's log."""
    prepare_environment()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        make_run(root, run)
