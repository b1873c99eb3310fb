"""Work side by side, each part by one thread, so that results do not depend on how many threads there are.

A matrix product that several threads share is cut among them, and where it is cut decides how its sums are rounded:
the same numbers on one core and on two differ in the last bit, and a vote near a tie flips. Here the caller chooses the
parts, one thread computes each, and only the number of parts in flight depends on the machine.
"""

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
    threads = torch.get_num_threads()
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
        torch.set_num_threads(threads)  # a worker's setting reaches threads that are started later
