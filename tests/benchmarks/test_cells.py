"""Figures that a long table keeps."""

from benchmarks.cells import Cells, spread


def test_what_is_there_is_not_made_again_and_half_a_line_is(tmp_path):
    path = tmp_path / "work" / "cells.jsonl"
    Cells(path).get("a", lambda: {"accuracy": 0.5})
    path.write_text(path.read_text() + '{"cell": "b", "acc')  # killed, or the disk was full
    kept = Cells(path)
    assert "a" in kept
    assert "b" not in kept
    assert kept.get("a", lambda: {"accuracy": 0.6})["accuracy"] == 0.5
    assert kept.get("b", lambda: {"accuracy": 0.7})["accuracy"] == 0.7
    assert Cells(path).get("b", dict)["accuracy"] == 0.7


def test_whoever_computes_a_cell_may_keep_more_beside_it(tmp_path):
    cells = Cells(tmp_path / "work" / "cells.jsonl")
    found = cells.get("a", lambda: {"bytes": cells.path.with_name("votes.npy").write_bytes(b"votes")})
    assert found["bytes"] == 5


def test_a_spread_needs_more_than_one_value():
    assert spread([0.5]) == "50.0"
    assert spread([0.5, 0.6], signed=True) == "+55.0 ± 7.1"
