"""Reading .npy files, also from several threads at once, and also those that nobody vouches for.

`numpy.load` opens archives and pickles as well, and reserves whatever memory a header claims. What comes from outside
goes through `from_bytes`, which takes arrays of numbers alone, exactly as long as their header says.

numpy parses a file's header with `ast`, and in some Pythons (seen in 3.11.7; CPython's issue 106905) two threads that
build syntax trees at the same time disturb each other: "SystemError: AST constructor recursion depth mismatch", raised
about a file that is as it should be.
"""

import io
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from terrine.errors import InputError, first_line

_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
"""Of the versions that arrays of numbers are written in."""

_one_at_a_time = threading.Lock()


def load(path: Path, *, memory_map: bool = False) -> NDArray[Any]:
    """Read the array of a .npy file, or map it; nothing is unpickled. Raises what `numpy.load` raises."""
    with _one_at_a_time:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if memory_map else None, allow_pickle=False)
    return array


def from_bytes(data: bytes, what: str) -> NDArray[Any]:
    """Return the array of numbers (bool, integers, floats, or rows of named ones) of a .npy file's content, read-only
    and without a copy.

    what: names it in errors. Raises InputError for anything else.
    """
    stream = io.BytesIO(data)
    try:
        with _one_at_a_time:
            version = npy_format.read_magic(stream)
            if version not in _HEADERS:
                raise ValueError(f"it is of version {version}")
            shape, columns_first, kind = _HEADERS[version](stream)
        parts = [kind] if kind.names is None else [kind[name].base for name in kind.names]
        if any(part.kind not in "biuf" for part in parts):
            raise ValueError(f"it holds {kind}")
        start = stream.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != len(data) - start:
            raise ValueError(f"it has {len(data) - start:,} bytes of numbers, and its header says another size")
        numbers: NDArray[Any] = np.frombuffer(data, kind, offset=start)
        return numbers.reshape(shape, order="F" if columns_first else "C")
    # A header is Python's text: its parser, numpy's types and sizes raise errors of many kinds.
    except Exception as error:
        why = first_line(error)[:120]
        raise InputError(f"{what} is no .npy file of numbers ({why}). Write it with numpy.save.") from error


def read(path: Path) -> NDArray[Any]:
    """Return the array of numbers in a .npy file that somebody brought. Raises InputError for anything else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    return from_bytes(data, str(path))
