"""Who carries a task: Prefect inside a flow, this very process outside one.

A stage is written once against `Executor`. In a flow its tasks are submitted to the flow's task runner, run in
parallel and show up on Prefect's page; run through DVC without a server the same functions are called directly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from flows import placement
from tasks.runtime.progress import CURRENT
from tasks.runtime.run import Run
from tasks.runtime.step import Step, prefect_is_here
from terrine.errors import TerrineError

if TYPE_CHECKING:
    from prefect import Task
    from prefect.context import FlowRunContext
    from prefect.futures import PrefectFuture
    from prefect.task_runners import TaskRunner


class Executor(Protocol):
    """Runs tasks."""

    def run(self, task: Step, *arguments: Any) -> None:
        """Run one task and wait for it."""

    def map(self, task: Step, calls: Sequence[tuple[Any, ...]], names: Sequence[str]) -> None:
        """Run a task for each tuple of arguments, in parallel where there is somebody to do it.

        All calls are made; then the failures, if any, are reported together by their names.
        """

    def place(self, run: Run, part: int) -> Run:
        """Return the run as part number `part` of a fan-out is handed it: on the part's own device."""


@dataclass(frozen=True)
class _Part:
    """One call of a task in a fan-out."""

    name: str
    arguments: tuple[Any, ...]


_Failures = list[tuple[_Part, BaseException]]


class InProcess:
    """Calls the plain functions, one after the other."""

    def run(self, task: Step, *arguments: Any) -> None:
        task.fn(*arguments)

    def map(self, task: Step, calls: Sequence[tuple[Any, ...]], names: Sequence[str]) -> None:
        parts = _parts(calls, names)
        failures: _Failures = []
        for part in parts:
            attempts = 1 + task.retries
            for attempt in range(attempts):
                try:
                    task.fn(*part.arguments)
                    break
                except TerrineError as error:
                    failures.append((part, error))
                    break
                except Exception as error:
                    if attempt == attempts - 1:
                        failures.append((part, error))
        _report(task.name, failures, len(parts))

    def place(self, run: Run, part: int) -> Run:
        return run


class InFlow:
    """Submits tasks to the task runner of the flow that is running."""

    def run(self, task: Step, *arguments: Any) -> None:
        # In the flow's own process: a single task gains nothing from a trip to a worker.
        task(*arguments)

    def map(self, task: Step, calls: Sequence[tuple[Any, ...]], names: Sequence[str]) -> None:
        parts = _parts(calls, names)
        if not parts:
            return  # nothing to draw, for instance, where a public pool is all that is asked about
        failures = _submit(lambda part: _named(task.task, part.name).submit(*part.arguments), parts)
        for at_once in (len(parts), 1):
            failures = _again_where_the_pool_broke(task.task, failures, at_once)
        _report(task.name, failures, len(parts))

    def place(self, run: Run, part: int) -> Run:
        from prefect.task_runners import ThreadPoolTaskRunner

        if not isinstance(_runner_of_the_flow(), ThreadPoolTaskRunner):
            return run
        device = placement.device_of_part(run.params.device, part, len(placement.cuda_devices(run.params.device)))
        return replace(run, params=run.params.model_copy(update={"device": device}))


def executor() -> Executor:
    """Return the executor for where we are: inside a flow, or not."""
    return InFlow() if _flow_context() is not None else InProcess()


def _flow_context() -> FlowRunContext | None:
    if not prefect_is_here():
        return None
    from prefect.context import FlowRunContext

    return FlowRunContext.get()


def _parts(calls: Sequence[tuple[Any, ...]], names: Sequence[str]) -> list[_Part]:
    return [_Part(name, arguments) for name, arguments in zip(names, calls, strict=True)]


def _runner_of_the_flow() -> TaskRunner[Any]:
    context = _flow_context()
    if context is None:
        raise RuntimeError("InFlow is used outside a flow.")
    return context.task_runner


def _named(task: Task[..., Any], name: str) -> Task[..., Any]:
    return task.with_options(task_run_name=f"{task.name} {name}")


def _submit(submit: Callable[[_Part], PrefectFuture[Any]], parts: Sequence[_Part]) -> _Failures:
    """Submit all parts, wait for all of them, and return those that failed."""
    futures = [submit(part) for part in parts]
    failures: _Failures = []
    with CURRENT.fan_out(len(parts)) as one_finished:
        for part, future in zip(parts, futures, strict=True):
            if (error := _failure(future)) is not None:
                failures.append((part, error))
            one_finished()
    return failures


def _failure(future: PrefectFuture[Any]) -> BaseException | None:
    """Wait for a task and return what went wrong; a worker that died raises instead of leaving a state."""
    try:
        result = future.result(raise_on_failure=False)
    except Exception as error:
        return error
    if future.state.is_completed():
        return None
    return result if isinstance(result, BaseException) else RuntimeError(f"ended as {future.state.name}")


def _again_where_the_pool_broke(task: Task[..., Any], failures: _Failures, at_once: int) -> _Failures:
    """Run the parts once more that were lost with a broken pool of processes, `at_once` at a time in a fresh pool.

    A process that is killed takes the whole pool with it, also the parts that had done nothing wrong. Run alone, only a
    part that kills its own process fails. Dask and Ray replace a dead worker by themselves.
    """
    broken = [part for part, error in failures if isinstance(error, BrokenExecutor)]
    remaining = [(part, error) for part, error in failures if not isinstance(error, BrokenExecutor)]
    for first in range(0, len(broken), at_once):
        with _runner_of_the_flow().duplicate() as fresh:
            remaining += _submit(_fresh_submit(task, fresh), broken[first : first + at_once])
    return remaining


def _fresh_submit(task: Task[..., Any], runner: TaskRunner[Any]) -> Callable[[_Part], PrefectFuture[Any]]:
    signature = inspect.signature(task.fn)

    def submit(part: _Part) -> PrefectFuture[Any]:
        arguments = dict(signature.bind(*part.arguments).arguments)
        return runner.submit(_named(task, f"{part.name}, again"), parameters=arguments)

    return submit


def _report(task: str, failures: _Failures, parts: int) -> None:
    if not failures:
        return
    lines = "; ".join(f"{task} {part.name}: {_sentence(error)}" for part, error in failures[:5])
    more = f"; and {len(failures) - 5} more: {', '.join(part.name for part, _ in failures[5:])}"
    message = (
        f"{len(failures)} of {parts} parts of '{task}' failed ({lines}{more if len(failures) > 5 else ''}). The others "
        "are finished and kept: run again, and only the failed parts are done."
    )
    first = failures[0][1]
    if all(isinstance(error, TerrineError) for _, error in failures):
        raise type(first)(message) from first
    raise RuntimeError(message) from first


def _sentence(error: BaseException) -> str:
    """Return what is said about a failure; for a killed worker, what that usually means."""
    if isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker":
        return (
            "its worker process was killed, most often for want of memory (smaller parts need less: teachers.per_task)"
        )
    text = str(error)
    return text if isinstance(error, TerrineError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
