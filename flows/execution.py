"""Task execution: by a Prefect task runner inside a flow, by direct calls outside one.

A stage is written once, for `Executor`. In a flow its tasks are Prefect task runs, in parallel on the configured task
runner. Stages that DVC starts without a server call the same functions directly.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tasks.config.sections import Runner
from tasks.runtime.progress import CURRENT
from tasks.runtime.run import Run
from tasks.runtime.step import Step, in_context
from terrine.errors import SettingError, TerrineError

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture
    from prefect.task_runners import TaskRunner


@dataclass(frozen=True)
class _Part:
    """One call of a task in a fan-out."""

    name: str
    arguments: tuple[Any, ...]


_Failures = list[tuple[_Part, BaseException]]


class Executor:
    """Runs tasks as task runs of the current flow if it has a started task runner, else as plain sequential calls."""

    def __init__(self, runner: TaskRunner[Any] | None = None) -> None:
        self._runner = runner

    def run(self, task: Step, *arguments: Any) -> None:
        """Run one task in this process and wait for it."""
        (task.fn if self._runner is None else task)(*arguments)

    def map(self, task: Step, calls: Sequence[tuple[Any, ...]], names: Sequence[str]) -> None:
        """Run the task once per argument tuple, in parallel if workers are available.

        All calls are made even if some fail. Failures are then reported together, with the names of their calls.

        Raises:
            TerrineError: If all failures are TerrineErrors; the combined error has the class of the first.
            RuntimeError: If a failure is not a TerrineError.
        """
        parts = [_Part(*each) for each in zip(names, calls, strict=True)]
        if self._runner is None:
            failures = [(part, error) for part in parts if (error := _call(task, part)) is not None]
        else:
            failures = _submit(self._runner, task, parts)
            # A killed process breaks Python's whole process pool. Lost parts run again in a fresh pool, then one by
            # one, so that only a part that kills its own process fails. Dask and Ray replace a dead worker.
            for at_once in (max(1, len(parts)), 1):
                broken = [part for part, error in failures if isinstance(error, BrokenExecutor)]
                failures = [(part, error) for part, error in failures if not isinstance(error, BrokenExecutor)]
                for first in range(0, len(broken), at_once):
                    with self._runner.duplicate() as fresh:
                        failures += _submit(fresh, task, broken[first : first + at_once], ", again")
        if failures:
            raise _combined(task.name, failures, len(parts)) from failures[0][1]

    def place(self, run: Run, part: int) -> Run:
        """Return the run for part number `part` of a fan-out, with the part's own device if parts share a process."""
        if self._runner is None:
            return run
        from flows.runners import ThreadPoolTaskRunner, part_device

        if not isinstance(self._runner, ThreadPoolTaskRunner):
            return run
        return replace(run, params=run.params.model_copy(update={"device": part_device(run.params.device, part)}))


@contextmanager
def executor(settings: Runner, device: str, *, fans_out: bool) -> Iterator[Executor]:
    """Yield the executor of a stage. In a flow, a stage that fans out gets the configured task runner.

    Raises:
        SettingError: If the task runner is not installed, or its cluster cannot be reached.
    """
    if not in_context("FlowRunContext"):
        yield Executor()
        return
    from flows.runners import device_per_task, task_runner

    settings = settings if fans_out else Runner(workers=1)
    with ExitStack() as stack:
        try:
            runner = stack.enter_context(task_runner(settings, device))
            getattr(runner, "client", None)  # Dask connects on first use
        except (OSError, TimeoutError) as error:
            raise SettingError(
                f"runner.address={settings.address}: connection failed ({error}). Start the cluster, correct the "
                "address, or set runner.address=null to use this machine."
            ) from error
        stack.enter_context(device_per_task(settings, device))
        try:
            yield Executor(runner)
        except KeyboardInterrupt:
            stack.pop_all()  # closing would wait for tasks; the process ends (`flows.stopping`)
            raise


def _call(task: Step, part: _Part) -> Exception | None:
    """Call the plain function, with retries if allowed, and return its exception, or None."""
    for retries_left in reversed(range(1 + task.retries)):
        try:
            task.fn(*part.arguments)
            return None
        except Exception as error:
            if isinstance(error, TerrineError) or not retries_left:
                return error
    raise AssertionError("unreachable")


def _submit(runner: TaskRunner[Any], step: Step, parts: Sequence[_Part], suffix: str = "") -> _Failures:
    """Submit all parts, wait for all of them, and return the failures."""
    signature = inspect.signature(step.fn)
    futures = [
        runner.submit(
            step.task.with_options(task_run_name=f"{step.name} {part.name}{suffix}"),
            parameters=dict(signature.bind(*part.arguments).arguments),
        )
        for part in parts
    ]
    failures: _Failures = []
    with CURRENT.fan_out(len(parts)) as one_finished:
        for part, future in zip(parts, futures, strict=True):
            if (error := _failure(future)) is not None:
                failures.append((part, error))
            one_finished()
    return failures


def _failure(future: PrefectFuture[Any]) -> BaseException | None:
    """Wait for a task and return its exception, or None. A dead worker raises instead of leaving a state."""
    try:
        result = future.result(raise_on_failure=False)
    except Exception as error:
        return error
    if future.state.is_completed():
        return None
    return result if isinstance(result, BaseException) else RuntimeError(f"ended as {future.state.name}")


def _combined(task: str, failures: _Failures, parts: int) -> Exception:
    """Return one error for all failures, which gives the reasons of the first five."""
    lines = "; ".join(f"{task} {part.name}: {_sentence(error)}" for part, error in failures[:5])
    if len(failures) > 5:
        lines += f"; and {len(failures) - 5} more: {', '.join(part.name for part, _ in failures[5:])}"
    message = (
        f"{len(failures)} of {parts} parts of '{task}' failed ({lines}). The others are finished and kept: run again, "
        "and only the failed parts are done."
    )
    first = failures[0][1]
    if isinstance(first, TerrineError) and all(isinstance(error, TerrineError) for _, error in failures):
        return type(first)(message)
    return RuntimeError(message)


def _sentence(error: BaseException) -> str:
    """Return a sentence about a failure; for a killed worker, it names the usual reason."""
    if isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker":
        return "its worker process was killed, most often for lack of memory (teachers.per_task makes parts smaller)"
    text = str(error)
    return text if isinstance(error, TerrineError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
