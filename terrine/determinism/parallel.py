"""Parallel work in single-threaded parts, whose results do not depend on the number of threads.

Several threads divide a matrix product, and the division affects the rounding of its sums, so the last bit may differ
between one core and two, and a vote near a tie may flip. Here the caller chooses the parts, and one thread computes
each; only the number of concurrent parts depends on the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import torch

Part = TypeVar("Part")
Result = TypeVar("Result")


def side_by_side(
    compute: Callable[[Part], Result], parts: Iterable[Part], device: torch.device | str = "cpu"
) -> Iterator[Result]:
    """Yield compute(part) for every part in order, computed by single-threaded workers on the CPU.

    The number of workers equals torch's number of threads. Parts are taken from the iterable as workers become free. On
    an accelerator the calling thread computes all parts. After an early exit from the loop no further part starts. An
    error in `compute` is raised in place of its result.
    """
    import torch

    if torch.device(device).type != "cpu":
        yield from map(compute, parts)
        return
    with _thread_count as threads:
        pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        remaining = iter(parts)
        pending: list[Future[Result]] = []
        try:
            pending.extend(pool.submit(compute, part) for part in islice(remaining, 2 * threads))
            while pending:
                yield pending.pop(0).result()
                pending.extend(pool.submit(compute, part) for part in islice(remaining, 1))
        finally:
            pool.shutdown(cancel_futures=True)


class FirstAndLast(Generic[Result]):
    """A block that several threads may share: the first calls `enter`, and the last calls `leave` with its result."""

    def __init__(self, enter: Callable[[], Result], leave: Callable[[Result], object]) -> None:
        self._enter, self._leave, self._lock, self._callers = enter, leave, threading.Lock(), 0

    def __enter__(self) -> Result:
        with self._lock:
            if self._callers == 0:
                self._value = self._enter()
            self._callers += 1
            return self._value

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._callers -= 1
            if self._callers == 0:
                self._leave(self._value)


# New threads inherit the last thread count set in any thread, so the process's count is restored when all
# single-threaded workers are done.
_thread_count = FirstAndLast(
    lambda: import_module("torch").get_num_threads(), lambda count: import_module("torch").set_num_threads(count)
)
