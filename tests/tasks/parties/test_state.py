"""What a party remembers across a crash."""

import stat

import numpy as np
import pytest

from tasks.parties.state import PartyState
from terrine.errors import ArtefactError


def test_what_is_saved_is_loaded_and_replaced_and_forgotten(tmp_path):
    state = PartyState(tmp_path / "state", "ab" * 32)
    assert state.load("sums") is None
    state.save("sums", {"a": np.arange(3, dtype=np.uint32), "b": np.ones((2, 2), bool)}, origin="x", present=["one"])
    arrays, about = PartyState(tmp_path / "state", "ab" * 32).load("sums")
    assert about == {"origin": "x", "present": ["one"]}
    np.testing.assert_array_equal(arrays["a"], [0, 1, 2])
    assert arrays["a"].dtype == np.uint32
    assert set(arrays) == {"a", "b"}
    state.save("sums", {"a": np.zeros(1)}, origin="y")
    assert state.load("sums")[1] == {"origin": "y"}
    assert PartyState(tmp_path / "state", "cd" * 32).load("sums") is None
    state.forget("sums")
    assert state.load("sums") is None
    state.clear()
    assert not state.folder.exists()


def test_only_its_owner_can_read_it(tmp_path):
    state = PartyState(tmp_path / "state", "ab" * 32)
    state.save("sums", {"a": np.zeros(1)})
    assert stat.S_IMODE(state.path("sums").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


@pytest.mark.parametrize("spoil", [lambda raw: raw[:40], lambda raw: b"", lambda raw: b"x" * len(raw)])
def test_a_damaged_file_is_an_error_and_not_an_empty_memory(spoil, tmp_path):
    state = PartyState(tmp_path / "state", "ab" * 32)
    state.save("sums", {"a": np.zeros(100)})
    path = state.path("sums")
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ArtefactError, match="changed or cut short"):
        state.load("sums")


def test_objects_are_never_stored_or_loaded(tmp_path):
    state = PartyState(tmp_path / "state", "ab" * 32)
    with pytest.raises(ValueError, match=r"pickle|Object arrays"):
        state.save("sums", {"a": np.array([{}], dtype=object)})
    assert state.load("sums") is None
