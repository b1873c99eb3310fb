"""Reading .npy files, also from several threads at once.

numpy parses a file's header with `ast`, and in some Pythons (seen in 3.11.7; CPython's issue 106905) two threads that
build syntax trees at the same time disturb each other: "SystemError: AST constructor recursion depth mismatch", raised
about a file that is as it should be.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_one_at_a_time = threading.Lock()


def load(path: Path, *, memory_map: bool = False) -> NDArray[Any]:
    """Read the array of a .npy file, or map it; nothing is unpickled. Raises what `numpy.load` raises."""
    with _one_at_a_time:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if memory_map else None, allow_pickle=False)
    return array
