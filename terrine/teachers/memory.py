"""A group of teachers that does not fit into memory is halved and tried again, down to one teacher."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence

from terrine.errors import first_line
from terrine.teachers.records import Arrays

_logger = logging.getLogger(__name__)
_CPU_WORDS = ("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether `error` means that memory ran out: Python's, CUDA's, or torch's allocator on the CPU."""
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
    """Train `teachers` with `train` and hand every finished one to `keep`, in smaller parts where memory runs out.

    A part that runs out is halved, without the teachers that it finished. A teacher is the same in any part (see
    `terrine.teachers.base`). Raises MemoryError when one teacher alone is too large, which a scheduler may try again
    when there is more room; every other error passes through.

    public: whether figures of the records may be logged. If not, nothing is logged, and the error contains no number:
    teachers' record counts decide which groups run out and how much memory they request.
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
        # Outside the handler, whose traceback holds on to the tensors that did not fit.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        rest = [teacher for teacher in part if teacher not in finished]
        if len(rest) == len(part) == 1:
            which = f"Teacher {rest[0]} alone does not fit into memory ({reason})."
            raise MemoryError(
                (which if public else "A teacher alone does not fit into memory.")
                + " Use a smaller teachers.batch or architecture, fewer workers on this machine, or a worker with more "
                "memory."
            )
        middle = (len(rest) + 1) // 2
        halves = [half for half in (rest[:middle], rest[middle:]) if half]
        if public:
            _logger.warning(
                "Memory ran out while a group of %d teachers was trained (%s): trying again with groups of %s.",
                len(part),
                reason,
                " and ".join(str(len(half)) for half in halves),
            )
        waiting[:0] = halves
