"""Half a file never counts."""

import os

import numpy as np
import pytest

from tasks.runtime import store
from terrine.errors import ArtefactError
from tests.folder_digest import folder_digest


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    store.write_json(path, {"version": 1})
    with pytest.raises(TypeError):
        store.write_json(path, {"version": object()})
    with pytest.raises(ZeroDivisionError), store.atomic_file(path) as stream:
        stream.write(b"half" * (1 // 0))
    assert store.read_json(path) == {"version": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_folder_leaves_the_old_folder_and_nothing_else(tmp_path):
    path = tmp_path / "artefact"
    with store.atomic_folder(path) as folder:
        store.write_text(folder / "a", "1")
    with pytest.raises(TypeError), store.atomic_folder(path) as folder:
        store.write_json(folder / "b", {"no JSON": object()})
    assert os.listdir(tmp_path) == ["artefact"]
    assert os.listdir(path) == ["a"]


@pytest.mark.parametrize("reader", [store.read_json, store.read_array, store.read_table, store.read_tensors])
def test_a_missing_or_damaged_artefact_is_named(tmp_path, reader):
    path = tmp_path / "artefact"
    with pytest.raises(ArtefactError, match="is missing"):
        reader(path)
    path.write_bytes(b"\x80\x04 not what it was")
    with pytest.raises(ArtefactError, match="cannot be read"):
        reader(path)


def test_pickled_arrays_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ArtefactError):
        store.read_array(path)


def test_a_link_is_the_same_bytes_and_replaces_what_was_there(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    store.write_text(source / "inner" / "a", "1")
    store.write_text(target / "old", "0")
    store.link(source, target)
    assert (target / "inner" / "a").read_text() == "1"
    assert not (target / "old").exists()
    assert folder_digest(source) == folder_digest(target)


def test_linking_a_file_again_leaves_nothing_behind(tmp_path):
    source, target = tmp_path / "source", tmp_path / "folder" / "target"
    source.write_bytes(b"weights")
    for _ in range(2):
        store.link(source, target)
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    assert target.read_bytes() == b"weights"
