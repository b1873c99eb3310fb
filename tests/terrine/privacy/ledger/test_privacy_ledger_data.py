"""Whose data an account is: another name, another ledger or a copy of this one is no second budget for them."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sql
from privacy_ledger_help import ANSWER, DATASET, KEY, Draw, Place, ask

from terrine.errors import BudgetError, LedgerError
from terrine.privacy.accounting.events import GaussianEvent, LaplaceEvent, RepeatedEvent, compose
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import Ledger
from terrine.privacy.ledger.site import SiteMemory
from terrine.privacy.ledger.standing import Standing

PEOPLE = np.sort(np.random.default_rng(1).integers(0, 2**63, 1000).astype(np.uint64))
OTHERS = np.sort(np.random.default_rng(2).integers(0, 2**63, 1000).astype(np.uint64))
REFUSED = "Some of these records were released about under another account"


@pytest.fixture
def ledger(any_place: Place) -> Ledger:
    ledger = any_place.open()
    for name in (DATASET, "second"):
        ledger.register(name, 2.0, 1e-5, "release")
    ask(ledger, "a", Draw(), data=PEOPLE)
    return ledger


@pytest.mark.parametrize(
    "case",
    {
        "the same": PEOPLE,
        "one record less": PEOPLE[:-1],
        "one record more": np.append(PEOPLE, OTHERS[:1]),
        "a half": PEOPLE[::2],
        "among others": np.concatenate([PEOPLE[::50], OTHERS]),
        "in another order": PEOPLE[::-1],
    }.items(),
    ids=lambda case: case[0],
)
def test_the_same_people_under_a_second_account_are_refused(case: tuple[str, np.ndarray], ledger: Ledger) -> None:
    data = case[1]
    draw, rows = Draw(), ledger.rows()
    with pytest.raises(LedgerError, match=REFUSED):
        ask(ledger, "b", draw, dataset="second", data=data)
    assert draw.drawn == []
    assert ledger.rows() == rows
    assert not ask(ledger, "b", Draw(), data=data).reused, "their own account goes on"
    ledger.verify()


def test_other_people_and_records_that_are_shared_by_chance_have_an_account_of_their_own(ledger: Ledger) -> None:
    few = np.concatenate([PEOPLE[:4], OTHERS])
    ask(ledger, "b", Draw(), dataset="second", data=few)
    with pytest.raises(LedgerError, match=REFUSED):
        ask(ledger, "c", Draw(), data=OTHERS)
    assert ask(ledger, "a", Draw(), data=OTHERS).reused, "what was released comes back, whatever the data are by now"
    assert ask(ledger, "d", Draw()).event == ANSWER, "data that are not known say nothing"


def test_a_fingerprint_is_keyed_and_kept_with_the_reservation(any_place: Place, ledger: Ledger) -> None:
    with any_place.by_hand() as connection:
        kept = {record for (record,) in connection.execute(sql.text("SELECT record FROM terrine_ledger_records"))}
    assert len(kept) == 1000
    assert not kept & {f"{digest:016x}" for digest in PEOPLE}
    (reserved,) = [row.content for row in ledger.rows() if row.kind == "reserve"]
    account = ledger.account(DATASET)
    assert account is not None
    assert account.data == [reserved["data"]]


@pytest.mark.parametrize("edit", ["DELETE FROM terrine_ledger_records", "UPDATE terrine_ledger_records SET data = 'x'"])
def test_fingerprints_that_were_removed_are_missed_and_the_very_same_data_known_nevertheless(
    edit: str, any_place: Place, ledger: Ledger
) -> None:
    with any_place.by_hand() as connection:
        connection.execute(sql.text(edit))
    with pytest.raises(LedgerError, match="fingerprints of records"):
        ledger.verify()
    with pytest.raises(LedgerError, match=REFUSED):
        ask(ledger, "b", Draw(), dataset="second", data=PEOPLE)


def test_linked_accounts_add_up_and_each_budget_holds_for_both(ledger: Ledger) -> None:
    ask(ledger, "b", Draw(), dataset="second")
    alone = ledger.spent(DATASET, 1e-5)
    ledger.link("second", DATASET)
    both = price(RepeatedEvent(ANSWER, 2), 1e-5)
    assert ledger.spent(DATASET, 1e-5) == ledger.spent("second", 1e-5) == pytest.approx(both, rel=1e-12)
    assert both > alone
    last = ask(ledger, "c", Draw(), dataset="second", data=PEOPLE)
    assert last.epsilon_total == ledger.spent(DATASET, 1e-5) == pytest.approx(price(RepeatedEvent(ANSWER, 3), 1e-5))
    ledger.set_budget(DATASET, last.epsilon_total * 1.001)
    for name, words in (("second", "linked with this one"), (DATASET, "would bring the account")):
        with pytest.raises(BudgetError, match=words):
            ask(ledger, "d", Draw(), dataset=name, data=PEOPLE)
    tight, wide = ledger.account(DATASET), ledger.account("second")
    assert tight is not None
    assert wide is not None
    assert [len(ledger.together(name)) for name in (DATASET, "second", "nobody")] == [2, 2, 0]
    assert wide.left(tight) == tight.left(wide) == tight.left()
    assert wide.left() > 10 * tight.left()
    ledger.verify()
    with pytest.raises(LedgerError, match="one account already, or linked"):
        ledger.link(DATASET, "second")


def test_links_join_whole_groups_and_keep_what_is_open_at_its_worst(place: Place) -> None:
    """In whichever measure each account is kept: one began with Laplace noise."""
    ledger, laplace = place.open(), LaplaceEvent(0.1, 1.0)
    for name in "wxyz":
        ledger.register(name, 4.0, 1e-5, "release")
    ask(ledger, "1", Draw(laplace), dataset="w", worst_case=laplace)
    ask(ledger, "2", Draw(), dataset="x")
    with pytest.raises(ZeroDivisionError):
        ask(ledger, "3", lambda: 1 / 0, dataset="y", worst_case=RepeatedEvent(ANSWER, 3))
    ledger.link("w", "x")
    ledger.link("y", "z")
    ledger.link("x", "z")
    worst = price(compose(laplace, RepeatedEvent(ANSWER, 4)), 1e-5)
    assert [ledger.spent(name, 1e-5) for name in "wxyz"] == pytest.approx([worst] * 4, rel=1e-9)
    ask(ledger, "3", Draw(), dataset="y", worst_case=RepeatedEvent(ANSWER, 3))
    ask(ledger, "4", Draw(), dataset="z")
    spent = price(compose(laplace, RepeatedEvent(ANSWER, 3)), 1e-5)
    assert [ledger.spent(name, 1e-5) for name in "wxyz"] == pytest.approx([spent] * 4, rel=1e-9)
    accounts = Standing.of(ledger.rows()).accounts
    assert all(set(account.linked) == set("wxyz") - {name} for name, account in accounts.items())
    whole = [account.total() for account in accounts.values()]
    assert all(total >= spent * (1 - 1e-9) for total in whole)
    large = GaussianEvent(mu_of(4.0, 1e-5) * 0.995, 1.0)  # the whole budget of any, but for what the others spent
    for name in "wxyz":
        with pytest.raises(BudgetError):
            ask(ledger, "5", Draw(), dataset=name, worst_case=large)
    ledger.verify()


def test_accounts_of_two_units_do_not_add_up(place: Place) -> None:
    ledger = place.open()
    for name, unit in (("x", "record"), ("y", "group")):
        ledger.register(name, 4.0, 1e-5, "release", unit=unit)
    with pytest.raises(LedgerError, match="protects a record, the other a group"):
        ledger.link("x", "y")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


def _begun(place: Place, site: Path, key: bytes = KEY) -> Ledger:
    ledger = Ledger(place.url, place.store, key, site=site)
    ledger.register(DATASET, 2.0, 1e-5, "release")
    return ledger


def _elsewhere(place: Place, tmp_path: Path) -> Place:
    return replace(place, url=f"sqlite:///{tmp_path}/other/ledger.db", store=tmp_path / "other" / "releases")


@pytest.mark.parametrize("key", [KEY, bytes(32)], ids=["same key", "another key"])
def test_another_ledger_of_the_site_is_no_second_budget(
    key: bytes, any_place: Place, site: Path, tmp_path: Path
) -> None:
    ask(_begun(any_place, site), "a", Draw(), data=PEOPLE)
    other, draw = _begun(_elsewhere(any_place, tmp_path), site, key), Draw()
    with pytest.raises(LedgerError, match=r"through another ledger of this site, .*othing was released"):
        ask(other, "b", draw, data=PEOPLE[10:])
    assert draw.drawn == []
    assert not ask(other, "c", draw, data=OTHERS).reused
    assert not ask(_begun(any_place, site), "d", draw, data=PEOPLE[10:]).reused
    assert not [path for path in (site, *site.iterdir()) if path.stat().st_mode & 0o077]


def test_a_ledger_that_was_moved_is_the_same_one(place: Place, site: Path, tmp_path: Path) -> None:
    ask(_begun(place, site), "a", Draw(), data=PEOPLE)
    moved = _elsewhere(place, tmp_path)
    moved.store.parent.mkdir()
    shutil.move(str(sql.make_url(place.url).database), moved.store.parent / "ledger.db")
    shutil.move(place.store, moved.store)
    assert not ask(_begun(moved, site), "b", Draw(), data=PEOPLE).reused


def test_a_copy_of_the_ledger_is_no_second_one(place: Place, site: Path, tmp_path: Path) -> None:
    """It has the same first row, key and releases; but the site saw the first go on."""
    ask(_begun(place, site), "a", Draw(), data=PEOPLE)
    copy = _elsewhere(place, tmp_path)
    shutil.copytree(Path(str(sql.make_url(place.url).database)).parent, copy.store.parent)
    shutil.copytree(place.store, copy.store)
    ask(_begun(place, site), "b", Draw(), data=PEOPLE)
    draw = Draw()
    with pytest.raises(LedgerError, match="it is a copy of another time"):
        ask(_begun(copy, site), "c", draw, data=PEOPLE)
    assert draw.drawn == []


def test_a_ledger_begun_anew_in_the_same_place_is_another_one(place: Place, site: Path) -> None:
    ask(_begun(place, site), "a", Draw(), data=PEOPLE)
    Path(str(sql.make_url(place.url).database)).unlink()
    shutil.rmtree(place.store)
    fresh = Ledger(place.url, place.store, KEY, site=site)
    fresh.register("another name", 9.0, 1e-5, "release")
    with pytest.raises(LedgerError, match="another ledger of this site"):
        ask(fresh, "b", Draw(), dataset="another name", data=PEOPLE)


def test_a_claim_goes_with_the_release_that_was_refused(place: Place, site: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError):
        ask(_begun(place, site), "a", Draw(), data=PEOPLE, worst_case=GaussianEvent(1.0, 0.1))
    other = _begun(_elsewhere(place, tmp_path), site)
    assert not ask(other, "a", Draw(), data=PEOPLE).reused
    with pytest.raises(LedgerError, match="another ledger"):
        ask(_begun(place, site), "b", Draw(), data=PEOPLE)


def test_a_memory_that_cannot_be_read_releases_nothing(place: Place, site: Path) -> None:
    ask(_begun(place, site), "a", Draw(), data=PEOPLE)
    (site / "site.db").write_text("no database\n" * 999)
    draw: Any = Draw()
    with pytest.raises(LedgerError, match="What this site remembers"):
        ask(_begun(place, site), "b", draw, data=PEOPLE)
    assert draw.drawn == []
    with pytest.raises(LedgerError, match="cannot be used"), SiteMemory(site).claim("x", "y", OTHERS):
        pass
