"""An array is read as numpy reads it, by one thread at a time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from terrine import npy


@pytest.fixture
def path(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12, dtype=np.int16).reshape(3, 4))
    return tmp_path / "a.npy"


def test_an_array_is_read_or_mapped(path):
    for memory_map in (False, True):
        array = npy.load(path, memory_map=memory_map)
        assert array.dtype == np.int16
        assert array.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert isinstance(array, np.memmap) == memory_map


def test_nothing_is_unpickled(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        npy.load(tmp_path / "objects.npy")


def test_no_two_threads_parse_a_header_at_once(path, monkeypatch):
    plain, inside, together = np.load, threading.Semaphore(1), []

    def watched(*arguments, **options):
        together.append(not inside.acquire(blocking=False))
        time.sleep(0.01)
        inside.release()
        return plain(*arguments, **options)

    monkeypatch.setattr(np, "load", watched)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: npy.load(path), range(8)))
    assert together == [False] * 8
