"""Who carries a task: Prefect inside a flow, this very process outside one.

A stage is written once against `Executor`. In a flow its tasks are submitted to the flow's task runner, run in
parallel and show up on Prefect's page; run through DVC without a server the same functions are called directly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from prefect import Task
from prefect.context import FlowRunContext
from prefect.futures import wait
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from tasks.params import Runner
from terrine.errors import SettingError, TerrineError


class Executor(Protocol):
    """Runs tasks."""

    def run(self, task: Task[..., Any], *arguments: Any) -> None:
        """Run one task and wait for it."""

    def map(self, task: Task[..., Any], calls: Sequence[tuple[Any, ...]], names: Sequence[str]) -> None:
        """Run a task for each tuple of arguments, in parallel where there is somebody to do it.

        All calls are made; then the failures, if any, are reported together by their names.
        """


class InProcess:
    """Calls the plain functions, one after the other."""

    def run(self, task: Task[..., Any], *arguments: Any) -> None:
        task.fn(*arguments)

    def map(self, task: Task[..., Any], calls: Sequence[tuple[Any, ...]], names: Sequence[str]) -> None:
        failures: list[tuple[str, BaseException]] = []
        for name, arguments in zip(names, calls, strict=True):
            attempts = 1 + (task.retries or 0)
            for attempt in range(attempts):
                try:
                    task.fn(*arguments)
                    break
                except TerrineError as error:
                    failures.append((name, error))
                    break
                except Exception as error:
                    if attempt == attempts - 1:
                        failures.append((name, error))
        _report(task.name, failures)


class InFlow:
    """Submits tasks to the task runner of the flow that is running."""

    def run(self, task: Task[..., Any], *arguments: Any) -> None:
        # In the flow's own process: a single task gains nothing from a trip to a worker.
        task(*arguments)

    def map(self, task: Task[..., Any], calls: Sequence[tuple[Any, ...]], names: Sequence[str]) -> None:
        futures = [
            task.with_options(task_run_name=f"{task.name} {name}").submit(*arguments)
            for name, arguments in zip(names, calls, strict=True)
        ]
        wait(futures)
        failures: list[tuple[str, BaseException]] = []
        for name, future in zip(names, futures, strict=True):
            if not future.state.is_completed():
                error = future.result(raise_on_failure=False)
                failures.append((name, error if isinstance(error, BaseException) else RuntimeError(future.state.name)))
        _report(task.name, failures)


def _report(task: str, failures: list[tuple[str, BaseException]]) -> None:
    if not failures:
        return
    users = [error for _, error in failures if isinstance(error, TerrineError)]
    lines = "; ".join(f"{name}: {error}" for name, error in failures[:5])
    more = f" and {len(failures) - 5} more" if len(failures) > 5 else ""
    message = f"{len(failures)} part(s) of '{task}' failed ({lines}{more}). Finished parts are kept: run again."
    if len(users) == len(failures):
        raise type(users[0])(message) from users[0]
    raise RuntimeError(message) from failures[0][1]


def executor() -> Executor:
    """Return the executor for where we are: inside a flow, or not."""
    return InFlow() if FlowRunContext.get() is not None else InProcess()


def _threads(workers: int, settings: Runner) -> TaskRunner[Any]:
    return ThreadPoolTaskRunner(max_workers=workers)


def _processes(workers: int, settings: Runner) -> TaskRunner[Any]:
    return ProcessPoolTaskRunner(max_workers=workers)


def _dask(workers: int, settings: Runner) -> TaskRunner[Any]:
    from prefect_dask import DaskTaskRunner

    if settings.address is not None:
        return DaskTaskRunner(address=settings.address, client_kwargs={"timeout": "30s"})
    return DaskTaskRunner(cluster_kwargs={"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None})


RUNNERS: dict[str, Callable[[int, Runner], TaskRunner[Any]]] = {
    "threads": _threads,
    "processes": _processes,
    "dask": _dask,
}


def task_runner(settings: Runner) -> TaskRunner[Any]:
    """Return the Prefect task runner that the parameters ask for."""
    if settings.kind not in RUNNERS:
        raise SettingError(f"runner.kind={settings.kind}: known runners are {', '.join(RUNNERS)}.")
    return RUNNERS[settings.kind](settings.workers or os.cpu_count() or 1, settings)
