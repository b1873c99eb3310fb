"""Files that are whole or absent."""

from pathlib import Path

import pytest

from terrine.files import atomic_file


def test_a_file_is_replaced_whole_or_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_file(path) as file:
        file.write(b"first")
    with atomic_file(path) as file:
        file.write(b"second")
    assert path.read_bytes() == b"second"
    with pytest.raises(FileExistsError), atomic_file(path, replace=False) as file:
        file.write(b"third")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic_file(tmp_path / "file") as file:
        file.write(b"half") / 0
    assert list(tmp_path.iterdir()) == []
