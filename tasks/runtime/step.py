"""Tasks: Prefect tasks without result caching.

Artefacts on disk and DVC record the completed work. Prefect would pickle results, and a release is idempotent by its
release ID (docs/ledger.md). Prefect is imported when a flow runs the task, because the processes that `dvc repro`
starts for each stage do not need it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from terrine.errors import TerrineError

if TYPE_CHECKING:
    from prefect import Task


@dataclass(frozen=True)
class Step:
    """A function that is a Prefect task in a flow; `fn` is the plain function."""

    fn: Callable[..., Any]
    name: str
    retries: int

    def __call__(self, *arguments: Any) -> Any:
        """Run the step as a task of the current flow."""
        return self.task(*arguments)

    @cached_property
    def task(self) -> Task[..., Any]:
        """The Prefect task."""
        from prefect import task
        from prefect.cache_policies import NO_CACHE

        return task(  # type: ignore[call-overload]
            self.fn,
            name=self.name,
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=self.retries,
            retry_delay_seconds=1,
            retry_condition_fn=lambda _task, _run, state: (
                not isinstance(state.result(raise_on_failure=False), TerrineError)
            ),
        )


def step(name: str, *, retries: int = 0) -> Callable[[Callable[..., Any]], Step]:
    """Declare a function as a task. A TerrineError is not retried, because the user must act first."""
    return lambda function: Step(function, name, retries)


def in_context(name: str) -> bool:
    """Return whether this code runs in Prefect's context `name`: FlowRunContext or TaskRunContext."""
    context = sys.modules.get("prefect.context")  # not imported: neither a flow nor a task is running
    return context is not None and getattr(context, name).get() is not None
