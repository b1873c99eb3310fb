"""Locks that die with their holder."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from terrine.errors import LedgerError
from terrine.privacy.ledger.locks import locked
from tests.processes import CONTEXT, process


def test_threads_take_turns_on_a_lock(tmp_path: Path) -> None:
    inside, most = [], []

    def work() -> None:
        for _ in range(5):
            with locked(tmp_path / "lock", patience=30):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 20
    assert list(tmp_path.iterdir()) == []


def _hold(path: Path, held) -> None:
    with locked(path, patience=10):
        held.set()
        time.sleep(60)


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    held = CONTEXT.Event()
    holder = process(_hold, tmp_path / "lock", held)
    holder.start()
    assert held.wait(120)
    with pytest.raises(LedgerError, match=r"held .*lock for more than 0.1 s"), locked(tmp_path / "lock", patience=0.1):
        pass
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with locked(tmp_path / "lock", patience=10):
        assert (tmp_path / "lock").exists()


def test_a_lock_in_a_folder_that_is_not_there_is_an_error_of_the_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be taken"), locked(tmp_path / "none" / "lock", patience=1):
        pass
