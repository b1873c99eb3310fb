"""Locks that the operating system frees when their holder dies."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from terrine.errors import LedgerError
from terrine.locks import locked
from terrine.privacy.ledger.chain import ledger_lock
from tests.processes import CONTEXT, process


def count(folder: Path, turns: int) -> None:
    """Increment a number in a file without any atomic operation, several times, each under the lock."""
    for _ in range(turns):
        with locked(folder / "lock", patience=60):
            number = int((folder / "number").read_text())
            time.sleep(0.001)
            (folder / "number").write_text(str(number + 1))


def test_threads_and_processes_take_turns_on_a_lock_whose_file_comes_and_goes(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    workers = [threading.Thread(target=count, args=(tmp_path, 20)) for _ in range(3)]
    workers += [process(count, tmp_path, 20) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "number").read_text() == "120"
    assert [path.name for path in tmp_path.iterdir()] == ["number"]


def _hold(path: Path, held) -> None:
    with locked(path, patience=10):
        held.set()
        time.sleep(60)


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    held = CONTEXT.Event()
    holder = process(_hold, tmp_path / "lock", held)
    holder.start()
    assert held.wait(120)
    with pytest.raises(LedgerError, match=r"held .*lock for more than 0.1 s"), ledger_lock(tmp_path / "lock", 0.1):
        pass
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with locked(tmp_path / "lock", patience=10):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_a_lock_that_cannot_be_made_is_an_error_of_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be taken"), ledger_lock(tmp_path / "file" / "lock", 1):
        pass
