"""A ledger that was edited, truncated, moved or locked: a clear error, and no draw."""

import contextlib
import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from terrine.errors import BudgetError, LedgerError
from terrine.privacy.accounting.events import GaussianEvent
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.ledger.ledger import Ledger
from tests.terrine.privacy.ledger.helpers import ANSWER, DATASET, Draw, Place, ask


def filled(place: Any) -> Ledger:
    """A ledger of eight rows."""
    ledger = place.open()
    ledger.register(DATASET, 2.0, 1e-5, "release")
    for name in "abc":
        ask(ledger, name, Draw())
    ledger.set_budget(DATASET, 3.0)
    return ledger


def assert_nothing_is_released(place: Any, message: str, **options: Any) -> None:
    """Neither a new release nor an old one comes out, and looking does not work either."""
    draw = Draw()
    for action in (
        lambda ledger: ask(ledger, "new", draw),
        lambda ledger: ask(ledger, "a", draw),
        lambda ledger: ledger.verify(),
        lambda ledger: ledger.set_budget(DATASET, 100.0),
    ):
        with pytest.raises(LedgerError, match=message) as error:
            action(place.open(**options))
        assert "othing was released" in str(error.value)
    assert draw.drawn == []
    assert not (place.store / "new.npz").exists()


EDITS = {
    "a budget raised": "UPDATE terrine_ledger SET body = replace(body, '3.0', '9.0') WHERE position = 8",
    "a cost lowered": "UPDATE terrine_ledger SET body = replace(body, '10.0', '99.0') WHERE position = 3",
    "a kind changed": "UPDATE terrine_ledger SET kind = 'register' WHERE position = 4",
    "a row given to another dataset": "UPDATE terrine_ledger SET dataset = 'other' WHERE position = 2",
    "a release renamed": "UPDATE terrine_ledger SET release_id = 'z' WHERE position = 5",
    "a date changed": "UPDATE terrine_ledger SET written = '2020-01-01T00:00:00+00:00' WHERE position = 1",
    "a seal changed": "UPDATE terrine_ledger SET mac = previous WHERE position = 6",
    "a row in the middle deleted": "DELETE FROM terrine_ledger WHERE position = 4",
    "the first row deleted": "DELETE FROM terrine_ledger WHERE position = 1",
    "the last row deleted": "DELETE FROM terrine_ledger WHERE position = 8",
    "the last releases deleted": "DELETE FROM terrine_ledger WHERE position > 5",
    "all rows deleted": "DELETE FROM terrine_ledger",
    "a row added": "INSERT INTO terrine_ledger SELECT 9, 'budget', dataset, NULL, body, written, mac, mac "
    "FROM terrine_ledger WHERE position = 8",
    "rows renumbered": "UPDATE terrine_ledger SET position = position + 10 WHERE position > 4",
    "the table dropped": "DROP TABLE terrine_ledger",
}
MESSAGES = "changed by hand|deleted by hand|cut off"
AT_THE_END = [edit for edit in EDITS if "8" in EDITS[edit] or "> " in EDITS[edit] or edit in ("all rows deleted",)]
"""Edits behind or at the row where the sealed sums end: every transaction sees them."""


def edited(place: Place, edit: str) -> None:
    assert filled(place).verify() == 8
    with place.by_hand() as connection:
        connection.execute(sql.text(EDITS[edit]))


@pytest.mark.parametrize("edit", EDITS)
def test_every_edit_of_the_rows_is_found(edit: str, place: Place) -> None:
    edited(place, edit)
    for look in (Ledger.verify, Ledger.rows):
        with pytest.raises(LedgerError, match=MESSAGES):
            look(place.open())


@pytest.mark.parametrize("edit", [*AT_THE_END, "the table dropped"])
def test_an_edit_of_the_end_is_found_by_every_transaction(edit: str, place: Place) -> None:
    edited(place, edit)
    assert_nothing_is_released(place, MESSAGES)


@pytest.mark.parametrize("edit", EDITS)
def test_no_edit_buys_a_release_or_a_second_draw(edit: str, place: Place) -> None:
    """The spent budget is sealed apart from the rows, so edits of the rows do not restore it."""
    edited(place, edit)
    # Within the budget of three if nothing had been spent, and past it by half of what was.
    large, draw = GaussianEvent(math.sqrt(mu_of(3.0, 1e-5) ** 2 - 1.5 * 0.1**2), 1.0), Draw()
    with pytest.raises((LedgerError, BudgetError)):
        ask(place.open(), "large", draw, worst_case=large)
    for name in "abc":
        with contextlib.suppress(LedgerError):
            ask(place.open(), name, draw)
    assert draw.drawn == []


HIDDEN = {
    "its commitment": "UPDATE terrine_ledger SET release_id = 'z' WHERE position = 3",
    "its reservation": "UPDATE terrine_ledger SET release_id = 'z' WHERE position = 2",
    "its commitment deleted": "DELETE FROM terrine_ledger WHERE position = 3",
    "both": "UPDATE terrine_ledger SET release_id = 'z' WHERE position IN (2, 3)",
}


@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_release_whose_rows_and_file_were_removed_is_never_drawn_again_for_free(
    hidden: str, any_place: Place
) -> None:
    ledger, draw = filled(any_place), Draw()
    spent = ledger.spent(DATASET, 1e-5)
    with any_place.by_hand() as connection:
        connection.execute(sql.text(HIDDEN[hidden]))
    (any_place.store / "a.npz").unlink()
    try:
        ask(any_place.open(), "a", draw)
    except LedgerError:
        assert draw.drawn == []
    else:
        assert hidden == "both"
        assert any_place.open().spent(DATASET, 1e-5) > spent
    with pytest.raises(LedgerError, match=MESSAGES):
        any_place.open().verify()


@pytest.mark.parametrize("edit", ["a cost lowered", "a row in the middle deleted", "the last row deleted"])
def test_edits_are_found_in_either_database(edit: str, any_place: Place) -> None:
    edited(any_place, edit)
    with pytest.raises(LedgerError, match=MESSAGES):
        any_place.open().verify()
    if edit in AT_THE_END:
        assert_nothing_is_released(any_place, MESSAGES)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _edit_head(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"count": 1}))


FILES: dict[str, tuple[Callable[[Any], object], str]] = {
    "the database cut short": (lambda place: _truncate(place.database), "cannot be used|cut off|changed by hand"),
    "the database emptied": (lambda place: place.database.write_bytes(b""), "cut off"),
    "the database replaced by text": (lambda place: place.database.write_text("ledger\n" * 999), "cannot be used"),
    "the database deleted": (lambda place: place.database.unlink(), "cut off"),
    "the head edited": (lambda place: _edit_head(place.store / "head.json"), "changed by hand"),
    "the head emptied": (lambda place: (place.store / "head.json").write_bytes(b""), "changed by hand"),
    "the head deleted": (lambda place: (place.store / "head.json").unlink(), "head .* is missing"),
    "the releases deleted": (lambda place: shutil.rmtree(place.store), "head .* is missing"),
}


@pytest.mark.parametrize("damage", FILES)
def test_damage_to_the_files_is_found(damage: str, place: Place) -> None:
    filled(place)
    harm, message = FILES[damage]
    harm(place)
    assert_nothing_is_released(place, message)


def test_another_database_beside_the_folder_of_a_ledger_is_refused_and_said(place: Place, tmp_path: Path) -> None:
    filled(place)
    other = type(place)(f"sqlite:///{tmp_path}/other.db", place.store)
    with pytest.raises(LedgerError, match=r"ledger\.url names another database.*ledger\.store"):
        other.open().register(DATASET, 2.0, 1e-5, "release")
    other = type(place)(other.url, tmp_path / "of its own")
    other.open().register(DATASET, 2.0, 1e-5, "release")


def test_an_old_copy_of_the_database_does_not_bring_a_budget_back(place: Place, tmp_path: Path) -> None:
    ledger = place.open()
    ledger.register(DATASET, 2.0, 1e-5, "release")
    ask(ledger, "a", Draw())
    shutil.copy(place.database, tmp_path / "copy")
    ask(ledger, "b", Draw())
    shutil.copy(tmp_path / "copy", place.database)
    assert_nothing_is_released(place, "old copy")


def test_another_ledger_with_the_same_key_is_not_taken_for_this_one(place: Place, tmp_path: Path) -> None:
    filled(place)
    other = type(place)(f"sqlite:///{tmp_path}/other.db", tmp_path / "other")
    other.open().register("another dataset", 9.0, 1e-5, "release")
    for name in "abcdefgh":
        ask(other.open(), name, Draw(), dataset="another dataset", worst_case=ANSWER)
    shutil.copy(tmp_path / "other.db", place.database)
    assert_nothing_is_released(place, "differs from the one in")


def test_a_ledger_of_another_key_is_refused(place: Place) -> None:
    filled(place)
    with pytest.raises(LedgerError, match="another key"):
        Ledger(place.url, place.store, bytes(32)).rows()


@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_locked_ledger_is_waited_for_and_then_given_up(statement: str, place: Place) -> None:
    filled(place)
    holder = sqlite3.connect(place.database, isolation_level=None)
    holder.execute(statement)
    assert_nothing_is_released(place, "locked by another process for 0.1 s", patience=0.1)
    holder.execute("ROLLBACK")
    holder.close()
    assert place.open().verify() == 8


@pytest.mark.parametrize("any_place", ["postgresql"], indirect=True)
def test_a_locked_table_of_postgresql_is_given_up_too(any_place: Place) -> None:
    filled(any_place)
    with any_place.by_hand() as connection:
        connection.execute(sql.text("LOCK TABLE terrine_ledger IN EXCLUSIVE MODE"))
        draw = Draw()
        with pytest.raises(LedgerError, match="locked by another process"):
            ask(any_place.open(patience=0.2), "new", draw)
        assert draw.drawn == []
    assert any_place.open().verify() == 8


def test_a_crash_before_the_head_was_written_is_no_damage(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = filled(place)
    with monkeypatch.context() as patch:
        patch.setattr("terrine.privacy.ledger.chain.Tip.advance", lambda *_: None)
        ask(ledger, "d", Draw())
    assert ledger.verify() == 10
    assert json.loads((place.store / "head.json").read_text())["count"] == 10


PAYLOADS: dict[str, Callable[[Path], object]] = {
    "cut short": _truncate,
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "replaced by another release": lambda path: shutil.copy(path.with_name("b.npz"), path),
    "edited": lambda path: path.write_bytes(path.read_bytes()[:200] + b"\x01\x02" + path.read_bytes()[202:]),
}


@pytest.mark.parametrize("damage", PAYLOADS)
def test_a_stored_release_that_is_not_what_was_committed_is_neither_returned_nor_drawn_again(
    damage: str, place: Place
) -> None:
    ledger, draw = filled(place), Draw()
    PAYLOADS[damage](place.store / "a.npz")
    for action in (lambda: ask(ledger, "a", draw), ledger.verify):
        with pytest.raises(LedgerError, match="from a backup"):
            action()
    assert draw.drawn == []
    assert ask(ledger, "b", draw).reused


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("not a url", "not the URL of a ledger"),
        ("sqlite://", "in memory"),
        ("mysql://host/database", "not mysql"),
        ("postgresql://terrine@/none?host=/nonexistent", "cannot be used"),
    ],
)
def test_a_place_that_is_none_is_refused(url: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=message):
        Ledger(url, tmp_path, bytes(32), patience=1.0)


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(LedgerError) as error:
        Ledger("postgresql://terrine:secret@/none?host=/nonexistent", tmp_path, bytes(32), patience=1.0)
    assert "secret" not in str(error.value)


def test_looking_at_a_ledger_that_is_not_there_does_not_make_one(any_place: Place) -> None:
    with pytest.raises(LedgerError, match="There is no ledger"):
        any_place.open(create=False)
    assert not any_place.store.exists()
