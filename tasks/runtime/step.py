"""The one way a Terrine task is declared: a Prefect task without result caching.

What has been done is known from the artefacts on disk and from DVC: Prefect's results would be pickled, and a release
must be idempotent by its identity (docs/ledger.md). `.fn` is the plain function. Prefect is imported when a flow
asks for its task: `dvc repro` starts a process for every stage, and none of them has a flow.
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
    """A function that is a task where a flow runs it, and a plain function where none does."""

    fn: Callable[..., Any]
    name: str
    retries: int

    def __call__(self, *arguments: Any) -> Any:
        """Run the step as a task of the flow that is running."""
        return self.task(*arguments)

    @cached_property
    def task(self) -> Task[..., Any]:
        """The step as Prefect knows it."""
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
    """Declare a function as a task called `name`; an error that only the user can mend is not retried."""
    return lambda function: Step(function, name, retries)


def prefect_is_here() -> bool:
    """Tell whether Prefect was imported in this process; where it was not, no flow and no task of its is running."""
    return "prefect.context" in sys.modules
