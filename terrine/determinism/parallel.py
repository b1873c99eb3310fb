"""Work side by side, each part by one thread, so that results do not depend on how many threads there are.

A matrix product that several threads share is cut among them, and where it is cut decides how its sums are rounded:
the same numbers on one core and on two differ in the last bit, and a vote near a tie flips. Here the caller chooses the
parts, one thread computes each, and only the number of parts in flight depends on the machine.
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
    """Yield compute(part) for every part, in order, computed by single-threaded workers on the CPU.

    As many workers as torch has threads; parts are taken from the iterable only as workers come free, so it may make
    large parts lazily. On an accelerator the parts follow one another in the calling thread. Leaving the loop early
    starts no further part. An error in `compute` is raised when its part's turn comes.
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
    """A block that several threads may be in at once: `enter` is called by the first, and gives what all are given;
    `leave` is called with it when the last is out."""

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


# torch hands the last number that any thread asked for to threads that are started later, so the process's own is set
# back when all workers, which were set to one thread each, are done.
_thread_count = FirstAndLast(
    lambda: import_module("torch").get_num_threads(), lambda count: import_module("torch").set_num_threads(count)
)
