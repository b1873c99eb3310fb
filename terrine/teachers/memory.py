"""Out-of-memory handling: a group of teachers that does not fit is halved and retried, down to a single teacher."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence

from terrine.errors import first_line
from terrine.teachers.records import Arrays

_logger = logging.getLogger(__name__)
_CPU_WORDS = ("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` is an out-of-memory error of Python, CUDA or torch's CPU allocator."""
    import torch

    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _CPU_WORDS)


def train_within_memory(
    train: Callable[[Sequence[int]], Iterator[tuple[int, Arrays]]],
    teachers: Sequence[int],
    keep: Callable[[int, Arrays], None],
    *,
    public: bool,
) -> None:
    """Train `teachers` with `train` and pass each finished one to `keep`, in smaller groups if memory runs out.

    If a group runs out of memory, its unfinished teachers are split into two groups. A teacher is the same in every
    group (`terrine.teachers.base`).

    Args:
        train: Function that yields (number, state) for each teacher of a group.
        teachers: Numbers of the teachers to train.
        keep: Function that stores a finished teacher, given its number and state.
        public: Whether figures of the records may be logged. If the data are private, nothing is logged and errors
            contain no number, because memory use depends on record counts.

    Raises:
        MemoryError: one teacher does not fit; a scheduler may retry later. Other errors of `train` pass through.
    """
    import torch

    waiting = [list(teachers)]
    while waiting:
        part = waiting.pop(0)
        finished: set[int] = set()
        reason = ""
        try:
            for teacher, state in train(part):
                keep(teacher, state)
                finished.add(teacher)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
        if not reason:
            continue
        # Outside the handler, whose traceback keeps the tensors alive.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        rest = [teacher for teacher in part if teacher not in finished]
        if len(rest) == len(part) == 1:
            which = f"Teacher {rest[0]} does not fit into memory ({reason})."
            raise MemoryError(
                (which if public else "A teacher does not fit into memory.")
                + " Use a smaller teachers.batch or architecture, fewer workers on this machine, or a worker with more "
                "memory."
            )
        middle = (len(rest) + 1) // 2
        halves = [half for half in (rest[:middle], rest[middle:]) if half]
        if public:
            sizes = " and ".join(str(len(half)) for half in halves)
            _logger.warning(
                "Out of memory in a group of %d teachers (%s). Trying groups of %s.",
                len(part),
                reason,
                sizes,
            )
        waiting[:0] = halves
