"""Running sums equal the totals over all rows, and sums written by others are refused."""

import contextlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from terrine.errors import BudgetError, LedgerError, SettingError
from terrine.privacy.accounting.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
    compose,
    counts,
    from_json,
    vote_answer,
)
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger import snapshot
from terrine.privacy.ledger.account import Account, ExactSum
from terrine.privacy.ledger.chain import Row
from terrine.privacy.ledger.database import Transaction
from terrine.privacy.ledger.ledger import Ledger
from terrine.privacy.ledger.release_protocol import ReleaseProtocol, costs_of
from terrine.privacy.ledger.snapshot import LedgerSnapshot
from tests.terrine.privacy.ledger.helpers import ANSWER, DATASET, Draw, Place, ask

EVENTS: list[Event] = [
    compose(),
    *(GaussianEvent(1.0, 7.0 + number / 3) for number in range(5)),
    compose(vote_answer(31.0), RepeatedEvent(GaussianEvent(0.1, 3.0), 7)),
    LaplaceEvent(0.3, 7.0),
    RandomisedResponseEvent(0.07, 5),
    compose(LaplaceEvent(0.1, 3.0), GaussianEvent(1.0, 11.0)),
]


def plain(rows: list[Row]) -> Account:
    """The account of `DATASET` with every release by itself, as it was kept before anything was added up."""
    found = LedgerSnapshot.of([row for row in rows if row.kind in ("register", "budget")]).accounts[DATASET]
    reserved = {str(row.release_id): from_json(row.content["event"]) for row in rows if row.kind == "reserve"}
    committed = {str(row.release_id): from_json(row.content["event"]) for row in rows if row.kind == "commit"}
    first = next((row for row in rows if row.kind == "reserve" and counts(from_json(row.content["event"]))), None)
    opened = None if first is None else LedgerSnapshot.of(rows[: first.position]).accounts[DATASET].budget
    return Account(found.budget, reserved, committed, found.unit, opened)


def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("seed", range(4))
def test_sums_that_are_carried_are_exactly_those_of_all_rows(seed: int, place: Place) -> None:
    """The sums agree to the last bit at every step, for any first release and for abandoned, late and refused ones."""
    drawn, ledger = random.Random(seed), place.open()
    ledger.register(DATASET, 4.0, 1e-5, "release")
    for number in range(25):
        worst = drawn.choice(EVENTS[1:] if seed % 2 else EVENTS)
        cost = compose() if drawn.random() < 0.1 else worst
        name = drawn.choice([f"release-{number}", f"release-{drawn.randrange(number + 1)}"])
        with contextlib.suppress(BudgetError, LedgerError, ZeroDivisionError):
            ask(ledger, name, fail if drawn.random() < 0.3 else Draw(cost), worst_case=worst)
        if drawn.random() < 0.1:
            ledger.set_budget(DATASET, drawn.uniform(2, 6))
        rows, carried = ledger.rows(), ledger.account(DATASET)
        assert carried == LedgerSnapshot.of(rows).accounts[DATASET]
        assert carried is not None
        whole = plain(rows)
        for further in ([], [ANSWER], [LaplaceEvent(0.1, 1.0), ANSWER]):
            assert carried.total(*further) == pytest.approx(whole.total(*further), rel=1e-15, abs=0)
        assert carried.left() == whole.left()
        assert price(carried.used(), 1e-5) == pytest.approx(
            price(compose(*costs_of(DATASET, rows).values()), 1e-5), rel=1e-12
        )
    assert ledger.verify() == len(rows) > 30


def test_a_sum_that_is_taken_out_again_leaves_no_rounding() -> None:
    values = [0.1, 1e-17, 3e15, 0.7]
    total = ExactSum()
    for value in values:
        total = total.plus(value).plus(float("inf"))
    for value in values[1:]:
        total = total.plus(value, -1)
    assert float(total) == float("inf")
    assert float(total.plus(float("inf"), -4)) == 0.1
    assert ExactSum.from_json(total.to_json()) == total


def test_what_has_no_end_is_counted_and_not_added(place: Place) -> None:
    ledger = place.open()
    ledger.register(DATASET, None, 1e-5, "replay")
    for name in "ab":
        release = ask(ledger, name, Draw(NonPrivateEvent()), worst_case=NonPrivateEvent())
        assert ask(ledger, name, Draw()).epsilon_total == release.epsilon_total == float("inf")
    assert ledger.verify() == 5


def _read_by(ledger: Ledger, name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of rows that a release reads."""
    read, rows = [], Transaction.rows
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "rows", lambda *a, **k: read.extend(found := rows(*a, **k)) or found)
        ask(ledger, name, Draw(GaussianEvent(1.0, 1e6)), worst_case=GaussianEvent(1.0, 1e6))
    return len(read)


def test_a_release_reads_as_few_rows_in_a_long_ledger_as_in_a_short_one(
    any_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = any_place.open()
    ledger.register(DATASET, 2.0, 1e-5, "release")
    ask(ledger, "first", Draw())
    short = _read_by(ledger, "second", monkeypatch)
    for number in range(30):
        ask(ledger, f"release-{number}", Draw(GaussianEvent(1.0, 1e6)), worst_case=GaussianEvent(1.0, 1e6))
    assert _read_by(ledger, "last", monkeypatch) == short <= 10
    assert len((any_place.store / "head.json").read_bytes()) < 3000, "and its head does not grow"


def _head(place: Place) -> dict[str, Any]:
    return dict(json.loads((place.store / "head.json").read_text()))


def _write_head(place: Place, head: dict[str, Any]) -> None:
    (place.store / "head.json").write_text(json.dumps(head))


def filled(place: Place) -> Ledger:
    ledger = place.open()
    ledger.register(DATASET, 2.0, 1e-5, "release")
    for name in "ab":
        ask(ledger, name, Draw())
    return ledger


def test_sums_that_other_code_made_are_made_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "_code", lambda: "of another version")
        filled(place)
    changed = place.open()
    walked, rows = [], Transaction.rows
    monkeypatch.setattr(Transaction, "rows", lambda *a, **k: walked.append(k.get("first", 1)) or rows(*a, **k))
    assert changed.spent(DATASET, 1e-5) == price(RepeatedEvent(ANSWER, 2), 1e-5)
    assert changed.spent(DATASET, 1e-5) == price(RepeatedEvent(ANSWER, 2), 1e-5)
    assert walked == [1, 5]


@pytest.mark.parametrize("edit", ["sums", "sums_seal"])
def test_sums_that_were_edited_are_refused(edit: str, place: Place) -> None:
    filled(place)
    head = _head(place)
    digit = next(each for each in head[edit] if each.isdigit())
    _write_head(place, head | {edit: head[edit].replace(digit, "1" if digit == "2" else "2")})
    draw = Draw()
    for action in (lambda: ask(place.open(), "new", draw), lambda: place.open().verify()):
        with pytest.raises(LedgerError, match="changed by hand"):
            action()
    assert draw.drawn == []


def test_sums_of_another_moment_do_not_fit_the_head(place: Place) -> None:
    filled(place)
    old = _head(place)
    ask(place.open(), "c", Draw())
    new = _head(place)
    _write_head(place, new | {name: old[name] for name in ("sums", "sums_seal")})
    with pytest.raises(LedgerError, match="changed by hand"):
        ask(place.open(), "new", Draw())


def test_an_old_head_alone_forgets_nothing(place: Place) -> None:
    """The ledger reads later releases from the rows, which continue the old head's chain."""
    filled(place)
    old = _head(place)
    for name in "cd":
        ask(place.open(), name, Draw())
    now = _head(place)
    _write_head(place, old)
    assert place.open().spent(DATASET, 1e-5) == price(RepeatedEvent(ANSWER, 4), 1e-5)
    assert _head(place) == now


def test_an_old_ledger_restored_with_its_head_is_refused_while_newer_releases_are_stored(
    place: Place, tmp_path: Path
) -> None:
    filled(place)
    files = [place.database, place.store / "head.json"]
    for file in files:
        shutil.copy(file, tmp_path / file.name)
    for name in "cd":
        ask(place.open(), name, Draw())
    for file in files:
        shutil.copy(tmp_path / file.name, file)
    draw = Draw()
    for action in (lambda: ask(place.open(), "new", draw), lambda: place.open().verify()):
        with pytest.raises(LedgerError, match=r"lacks the stored release .*c\.npz and 1 more.*othing was"):
            action()
    assert draw.drawn == []
    # Older releases come back as they were: that costs nothing.
    assert ask(place.open(), "a", draw).reused


def test_an_emptied_ledger_is_not_intact_while_releases_lie_there(any_place: Place) -> None:
    filled(any_place)
    with any_place.by_hand() as connection:
        connection.execute(sql.text("DELETE FROM terrine_ledger"))
    (any_place.store / "head.json").unlink()
    fresh = any_place.open()
    with pytest.raises(LedgerError, match="was emptied"):
        fresh.verify()
    fresh.register(DATASET, 2.0, 1e-5, "release")
    draw = Draw()
    with pytest.raises(LedgerError, match="was emptied"):
        ask(fresh, "new", draw)
    assert draw.drawn == []


def test_what_only_a_witness_could_notice_is_noticed_with_one(place: Place, tmp_path: Path) -> None:
    """The whole place is put back as it was: database, head and releases."""
    filled(place)
    kept = place.open().witness()
    root = place.store.parent
    shutil.copytree(root, tmp_path / "backup")
    for name in "cd":
        ask(place.open(), name, Draw())
    lines = f"{kept}\n{place.open().witness()}\n"
    assert place.open().verify(lines) == 9
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "backup", root)
    assert place.open().verify(kept) == place.open().verify() == 5
    with pytest.raises(LedgerError, match="not continue the one of the witness, or is an old copy"):
        place.open().verify(lines)
    with pytest.raises(LedgerError, match="not continue the one"):
        place.open().verify(kept[:-1] + ("1" if kept[-1] == "0" else "0"))
    with pytest.raises(SettingError, match="is not a line"):
        place.open().verify("5 rows")


def test_a_release_that_was_stored_before_its_commitment_is_no_sign_of_an_old_ledger(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = filled(place)
    with monkeypatch.context() as patch:
        patch.setattr(ReleaseProtocol, "commit", lambda *_: fail())
        with pytest.raises(ZeroDivisionError):
            ask(ledger, "c", Draw())
    assert not ask(place.open(), "d", Draw()).reused
    assert ask(place.open(), "c", Draw()).reused
    place.open().verify()
