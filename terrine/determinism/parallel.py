"""Work side by side, each part by one thread, so that results do not depend on how many threads there are.

A matrix product that several threads share is cut among them, and where it is cut decides how its sums are rounded:
the same numbers on one core and on two differ in the last bit, and a vote near a tie flips. Here the caller chooses the
parts, one thread computes each, and only the number of parts in flight depends on the machine.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

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


class _ThreadCount:
    """The process's number of threads, remembered while workers that were set to one thread each are at work.

    torch hands the last number that any thread asked for to threads that are started later, so that number is set
    back when the last of possibly several callers is done.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callers = 0
        self._threads = 1

    def __enter__(self) -> int:
        with self._lock:
            if self._callers == 0:
                self._threads = torch.get_num_threads()
            self._callers += 1
            return self._threads

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._callers -= 1
            if self._callers == 0:
                torch.set_num_threads(self._threads)


_thread_count = _ThreadCount()
