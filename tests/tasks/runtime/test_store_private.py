"""Only the owner can read the private zone, regardless of umask and earlier permissions."""

import os
from pathlib import Path

import numpy as np
import pytest

from tasks.runtime.store import Folders, atomic_folder, write_array, write_json


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o077)


def test_what_is_private_is_written_for_its_owner_alone_and_the_rest_for_all(umask, tmp_path):
    folders = Folders(tmp_path, "run")
    (tmp_path / ".dvc" / "cache").mkdir(parents=True)
    write_json(folders.parameters, {})
    with atomic_folder(folders.votes) as folder:
        write_array(folder / "votes.npy", np.zeros(3))
    write_json(folders.statement, {})
    private = [folders.parameters, folders.votes, folders.votes / "votes.npy", tmp_path / "data" / "private"]
    assert not [path for path in [*private, tmp_path / ".dvc" / "cache"] if open_to_others(path)]
    shown = [folders.statement, *(parent for parent in folders.statement.parents if parent.is_relative_to(tmp_path))]
    assert all(open_to_others(path) for path in shown if path != tmp_path)


def test_a_private_zone_that_was_open_is_closed_at_the_next_write(umask, tmp_path):
    zone = tmp_path / "data" / "private"
    (zone / "run").mkdir(parents=True)
    assert open_to_others(zone)
    write_json(zone / "run" / "evaluation.json", {})
    assert not open_to_others(zone)
