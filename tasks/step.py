"""The one way a Terrine task is declared: a Prefect task without result caching.

What has been done is known from the artefacts on disk and from DVC, not from Prefect's result store: results would be
pickled, and a release must be idempotent by its identity (see docs/exactly-once.md). `.fn` is the plain function.
"""

from collections.abc import Callable
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE

from terrine.errors import TerrineError


def step(name: str, *, retries: int = 0) -> Callable[[Callable[..., Any]], Task[..., Any]]:
    """Declare a function as a Prefect task called `name`; an error that only the user can mend is not retried."""
    return task(
        name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=retries,
        retry_delay_seconds=1,
        retry_condition_fn=_may_pass,
    )


def _may_pass(_task: Any, _run: Any, state: Any) -> bool:
    return not isinstance(state.result(raise_on_failure=False), TerrineError)
